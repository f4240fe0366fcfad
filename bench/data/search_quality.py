"""Quality and speed of search: words, vectors and both, on real texts with known answers; the exact scan
against the machine's read bandwidth; LanceDB where it is installed.

    python bench/data/search_quality.py quality [--queries 100] [--peer]
    python bench/data/search_quality.py scan [--rows 1000000] [--size 384]

The texts are in $HEADRACE_SHARED_DATA (../shared/data), which is not part of the project; sets that are not
there are skipped.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import lzma
import os
import random
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace import LLM, _native
from headrace.search.index import IndexMeta, IndexQuery, IndexRow, TextSpan
from headrace.search.local_index import LocalIndex
from headrace.search.vectors import VectorFiles, unit

DATA = Path(os.environ.get("HEADRACE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
DEPTH = 10
_HEADING = re.compile(r"^#{1,4} +(.+?)[ #]*$", re.MULTILINE)
_EXAMPLE = re.compile(r"^- (.+):\n\n`(.+)`$", re.MULTILINE)


@dataclass
class Texts:
    """Texts with the group of each, and questions with the group of their answers."""

    name: str
    texts: list[str]
    groups: list[str]
    questions: list[str]
    wanted: list[str]


def held_out(name: str, pairs: list[tuple[str, str]], count: int) -> Texts:
    """`count` texts as questions, whose answers are the other texts of their group."""
    pairs = list(dict.fromkeys(pairs))
    sizes: dict[str, int] = {}
    for _, group in pairs:
        sizes[group] = sizes.get(group, 0) + 1
    able = [number for number, (_, group) in enumerate(pairs) if sizes[group] > DEPTH / 2]
    asked = set(random.Random(1).sample(able, count))
    rest = [pair for number, pair in enumerate(pairs) if number not in asked]
    questions = [pairs[number] for number in sorted(asked)]
    return Texts(name, *map(list, zip(*rest, strict=True)), *map(list, zip(*questions, strict=True)))


def banking77(count: int) -> Texts:
    with lzma.open(DATA / "intents/banking77/train.csv.xz", "rt") as file:
        pairs = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    return held_out("Banking77", pairs, count)


def clinc150(count: int) -> Texts:
    with lzma.open(DATA / "intents/clinc150/data_small.json.xz") as file:
        content = json.load(file)
    return held_out("CLINC150", [(text, group) for text, group in content["train"]], count)


def tldr(count: int) -> Texts:
    """Commands, named by their pages; the question is what a command does, its answers are commands of the
    same page."""
    pairs: list[tuple[str, str, str]] = []
    for name, text in _files("text/tldr_pages_en.tar.xz"):
        found = _EXAMPLE.findall(text)
        pairs += [(what, how, Path(name).stem) for what, how in found if len(found) >= 4]
    pairs = random.Random(2).sample(pairs, min(12_000, len(pairs)))
    asked = random.Random(1).sample(pairs, count)
    groups, wanted = [page for _, _, page in pairs], [page for _, _, page in asked]
    return Texts("tldr", [how for _, how, _ in pairs], groups, [what for what, _, _ in asked], wanted)


def techdocs(count: int) -> Texts:
    """Sections without their headings; the question is a heading, answers are sections of its document."""
    sections: list[tuple[str, str, str]] = []
    for name, text in _files("text/techdocs.tar.xz"):
        parts = _HEADING.split(text)[1:]
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        if len(pairs) >= 4:
            sections += [(heading, " ".join(body.split())[:600], name) for heading, body in pairs]
    sections = [one for one in sections if len(one[1]) > 80]
    sections = random.Random(3).sample(sections, min(12_000, len(sections)))
    seen: dict[str, int] = {}
    for heading, _, _ in sections:
        seen[heading] = seen.get(heading, 0) + 1
    able = [one for one in sections if len(one[0].split()) >= 3 and seen[one[0]] == 1]
    asked = random.Random(1).sample(able, count)
    return Texts(
        "techdocs",
        [body for _, body, _ in sections],
        [name for _, _, name in sections],
        [heading for heading, _, _ in asked],
        [name for _, _, name in asked],
    )


def _files(path: str) -> Iterator[tuple[str, str]]:
    with tarfile.open(DATA / path) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith((".md", ".mdx")):
                file = archive.extractfile(member)
                assert file is not None
                yield member.name, file.read().decode("utf-8", "replace")


SETS: dict[str, Callable[[int], Texts]] = {
    "banking77": banking77,
    "clinc150": clinc150,
    "techdocs": techdocs,
    "tldr": tldr,
}


def embedded(llm: LLM, texts: list[str]) -> np.ndarray:
    return unit(llm.embed(texts, truncate=True), texts)


def index_of(folder: Path, given: Texts, vectors: np.ndarray) -> LocalIndex:
    index = LocalIndex.make(folder, IndexMeta(model="embed", chunk_tokens=256))
    rows = [
        IndexRow(
            key=str(number),
            digest=b"",
            attributes={"group": given.groups[number]},
            spans=(TextSpan(0, len(text)),),
            texts=(text,),
            vectors=vectors[number : number + 1],
        )
        for number, text in enumerate(given.texts)
    ]
    began = time.perf_counter()
    for start in range(0, len(rows), 4096):
        index.upsert(rows[start : start + 4096])
    print(
        f"  {len(rows):,} texts, index in {time.perf_counter() - began:.1f} s,"
        f" {index.version().bytes:,} bytes"
    )
    return index


def precision(given: Texts, ask: Callable[[int], list[int]]) -> tuple[float, float]:
    """Of the first ten hits the part in the question's group, and milliseconds of a query."""
    total, began = 0.0, time.perf_counter()
    for number, wanted in enumerate(given.wanted):
        total += sum(given.groups[hit] == wanted for hit in ask(number)) / DEPTH
    return total / len(given.wanted), (time.perf_counter() - began) * 1000 / len(given.wanted)


def quality(given: Texts, llm: LLM, folder: Path, *, peer: bool) -> None:
    vectors, asked = embedded(llm, given.texts), embedded(llm, given.questions)
    print(f"{given.name}: {len(given.questions)} questions")
    index = index_of(folder, given, vectors)

    def ask(*, words: bool, vector: bool) -> Callable[[int], list[int]]:
        def found(number: int) -> list[int]:
            query = IndexQuery(
                text=given.questions[number] if words else "",
                vector=asked[number] if vector else None,
                limit=DEPTH,
            )
            return [int(hit.key) for hit in index.query(query).hits]

        return found

    for name, parts in (
        ("words", {"words": True, "vector": False}),
        ("vectors", {"words": False, "vector": True}),
        ("hybrid", {"words": True, "vector": True}),
    ):
        share, milliseconds = precision(given, ask(**parts))
        print(f"  {name:8} {share:.3f}  {milliseconds:.1f} ms")
    if peer:
        lance(folder / "lance", given, vectors, asked)


def lance(folder: Path, given: Texts, vectors: np.ndarray, asked: np.ndarray) -> None:
    lancedb: Any = importlib.import_module("lancedb")
    began = time.perf_counter()
    table = lancedb.connect(folder).create_table(
        "t", [{"id": i, "text": text, "vector": vectors[i]} for i, text in enumerate(given.texts)]
    )
    table.create_fts_index("text", with_position=False)
    print(f"  LanceDB: index in {time.perf_counter() - began:.1f} s")

    def words(number: int) -> list[int]:
        rows = table.search(given.questions[number], query_type="fts").limit(DEPTH).to_list()
        return [row["id"] for row in rows]

    def vector(number: int) -> list[int]:
        rows = table.search(asked[number]).distance_type("cosine").limit(DEPTH).to_list()
        return [row["id"] for row in rows]

    def hybrid(number: int) -> list[int]:
        search = table.search(query_type="hybrid").vector(asked[number]).text(given.questions[number])
        return [row["id"] for row in search.distance_type("cosine").limit(DEPTH).to_list()]

    for name, find in (("words", words), ("vectors", vector), ("hybrid", hybrid)):
        share, milliseconds = precision(given, find)
        print(f"  LanceDB {name:8} {share:.3f}  {milliseconds:.1f} ms")


def scan(rows: int, size: int) -> None:
    """The exact scan, in the same run as the probe of the read bandwidth."""
    random_numbers = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        files = VectorFiles(Path(folder), 0, size)
        error, portion = 0.0, 16_384
        for start in range(0, rows, portion):
            part = random_numbers.standard_normal((min(portion, rows - start), size), np.float32)
            error = max(error, files.append(start, unit(part, [""] * len(part))))
        query = unit(random_numbers.standard_normal((1, size), np.float32), ["query"])[0]
        masks = (
            ("all", None),
            ("half", random_numbers.random(rows) < 0.5),
            ("1 %", random_numbers.random(rows) < 0.01),
        )
        pool = _native.Pool(len(os.sched_getaffinity(0)))
        for name, mask in masks:
            files.nearest(query, rows, mask, DEPTH, error)
            seconds, speeds = [], []
            for _ in range(15):
                speeds.append(_native.read_bandwidth(pool, repeats=1))
                began = time.perf_counter()
                files.nearest(query, rows, mask, DEPTH, error)
                seconds.append(time.perf_counter() - began)
            best, middle = min(seconds), float(np.median(seconds))
            speed = float(np.median(speeds))
            print(
                f"{rows:,} x {size}, {name}: median {middle * 1e3:.1f} ms, best {best * 1e3:.1f} ms; reads "
                f"{rows * size / middle / 1e9:.1f} GB/s of {speed / 1e9:.1f}"
                f" ({rows * size / middle / speed:.0%},"
                f" best of each {rows * size / best / max(speeds):.0%})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("quality", "scan"))
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--peer", action="store_true", help="measure LanceDB, too")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=384)
    given = parser.parse_args()
    if given.what == "scan":
        scan(given.rows, given.size)
        return
    if not DATA.is_dir():
        sys.exit(f"{DATA} is not there: set HEADRACE_SHARED_DATA")
    with LLM("embed") as llm, tempfile.TemporaryDirectory() as folder:
        for name in given.sets:
            quality(SETS[name](given.queries), llm, Path(folder) / name, peer=given.peer)


if __name__ == "__main__":
    main()
