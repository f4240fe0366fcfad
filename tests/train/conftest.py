"""Generated training data and tiny shapes, so that every recipe runs in seconds."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TRAIN = Path(__file__).resolve().parents[2] / "train"
# The first is of everyday use, the next two reference each other, the last is left out: no page
# references it.
PAGES = ("tar", "other", "third", "unknown")
VERBS = ("List", "Remove", "Create", "Show", "Open", "Copy")
NOUNS = ("file", "user", "branch", "package", "image", "port")


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the recipes importable, and unloads them after the test."""
    for package in ("torch", "safetensors", "matplotlib"):
        pytest.importorskip(package, reason="the recipes need the packages of headrace[train]")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(TRAIN)
    yield
    for name in set(sys.modules) - before:
        if str(TRAIN) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def made_up_data(tmp_path: Path) -> Path:
    """A data folder with small amounts of everything that the recipes read, a few kilobytes."""
    data = tmp_path / "data"
    for folder in (
        "text",
        "sql/text2sql",
        "intents/clinc150",
        "intents/banking77",
        "ner/wnut17",
        "ner/btc",
        "pii",
    ):
        (data / folder).mkdir(parents=True)
    _write_tar(
        data / "text/novels_plain.tar.xz", {"Burnett_Princess_1905.txt": _novel(1), "A_B_1900.txt": _novel(2)}
    )
    novels = {
        "Doyle_Lost_1912.txt": _novel(3),
        "Wcollins_Basil_1852.txt": _novel(4),
        "C_D_1901.txt": _novel(5),
    }
    _write_tar(data / "text/novels_1839_1925.tar.xz", novels)
    _write_tar(data / "text/techdocs.tar.xz", {"some/readme.md": "# Title\n\n" + "It is a server.\n" * 600})
    _write_tar(
        data / "text/tldr_pages_en.tar.xz",
        {f"pages/common/{name}.md": _page(at) for at, name in enumerate(PAGES)},
    )
    (data / "sql/text2sql/wikisql.json.bz2").write_bytes(bz2.compress(json.dumps(_wikisql()).encode()))
    intents = {
        "train": [["hi there", "greeting"], ["what is love", "definition"]] * 3,
        "val": [["hello there", "greeting"]],
        "test": [["what is that", "definition"]],
        "oos_train": [["why", "oos"]],
    }
    (data / "intents/clinc150/data_small.json.xz").write_bytes(lzma.compress(json.dumps(intents).encode()))
    rows = [f"is my {kind} {number} here,{kind}" for kind in ("card", "cash") for number in range(12)]
    text = "\n".join(["text,category", *rows])
    (data / "intents/banking77/train.csv.xz").write_bytes(lzma.compress(text.encode()))
    _write_entities(data)
    return data


def _write_entities(data: Path) -> None:
    def write(name: str, text: str) -> None:
        (data / name).write_bytes(lzma.compress(text.encode()))

    tweet = "Ann\tB-person\nLee\tI-person\nsaw\tO\nRome\tB-location\n.\tO\n\n"
    write("ner/wnut17/train.conll.xz", tweet * 3)
    write("ner/wnut17/dev.conll.xz", tweet)
    for part in "abefgh":
        write(f"ner/btc/{part}.conll.xz", "Ann\tB-PER\nof\tO\nUNO\tB-ORG\n\n")
    text = "Write me at a@b.com."
    span = {"entity_type": "EMAIL_ADDRESS", "start_position": 12, "end_position": 19}
    sentences = [{"full_text": text, "spans": [span], "template_id": template} for template in range(6)]
    write("pii/generated_large.json.xz", json.dumps(sentences))


def _novel(number: int) -> str:
    paragraph = (
        f"The man of house {number} went out and saw the sea. He said that it was cold and went home again."
    )
    return "\n\n".join([paragraph] * 80)


def _page(at: int) -> str:
    tool, other = f"tool{at}", f"tool{2 if at == 1 else 1}"
    examples = (
        f"- {verb} a {noun} of kind {at}:\n\n`{tool} {verb.lower()} {{{{path/to/{noun}}}}} | {other}`\n"
        for verb, noun in zip(VERBS, NOUNS, strict=True)
    )
    return f"# {tool}\n\n> A tool.\n\n" + "\n".join(examples)


def _wikisql() -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for at, split in enumerate(["train"] * 8 + ["dev"] * 3 + ["test"] * 3):
        sentence = {
            "original": f"Which city has river number {at}?",
            "question-split": split,
            "table-id": f"{split}-{at}",
            "variables": {"var0": str(at)},
        }
        sql = "SELECT TABLEalias0.CITY_FIELD FROM TABLE AS TABLEalias0 WHERE TABLEalias0.RIVER_FIELD = var0 ;"
        entries.append({"sql": [sql], "sentences": [sentence]})
    entries.append(
        {"sql": [sql.replace("CITY", "LENGTH")], "sentences": [sentence | {"table-id": "train-9"}]}
    )
    entries.append({"sql": [sql.replace("CITY", "NAME")], "sentences": [sentence | {"table-id": "train-10"}]})
    return entries


def _write_tar(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
