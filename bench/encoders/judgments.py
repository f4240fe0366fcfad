"""One judgment by an encoder's vector, by scoring labels and by generating the label: accuracy and speed.

    .venv/bin/python bench/encoders/judgments.py DATA [--intents 20] [--texts 100] [--rounds 5]

DATA is the folder of shared data. The texts are remarks of CLINC150's test part, of the first intents by
name; the examples are those of its training part. All ways see the same texts, one text at a time and in turn
in each round, on one thread: texts per second are per second of processor time, so that other work of the
machine changes little. Examples of Banking77 (--banking) are of a domain
that no model here has learned.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from headrace import LLM

Judge = Callable[[str], str]
"""From a text to its label."""
Remark = tuple[str, str]
"""A text and its label."""
QUESTION = "{text}\n\nWhich of these fits best: {labels}?\nAnswer:"


def clinc(data: Path, count: int) -> tuple[list[Remark], list[Remark]]:
    """Examples and questions of the first `count` intents."""
    splits = json.loads(lzma.decompress((data / "intents/clinc150/data_small.json.xz").read_bytes()))
    wanted = sorted({label for _, label in splits["train"]})[:count]

    def of(name: str) -> list[Remark]:
        return [(text, label.replace("_", " ")) for text, label in splits[name] if label in wanted]

    return of("train"), of("test")


def banking(data: Path, count: int, examples: int = 10) -> tuple[list[Remark], list[Remark]]:
    """The same of Banking77: so many examples of each label, the others are asked."""
    text = lzma.decompress((data / "intents/banking77/train.csv.xz").read_bytes()).decode()
    rows = [(row["text"], row["category"].replace("_", " ")) for row in csv.DictReader(io.StringIO(text))]
    learned, asked = list[Remark](), list[Remark]()
    for label in sorted({label for _, label in rows})[:count]:
        own = [row for row in rows if row[1] == label]
        learned += own[:examples]
        asked += own[examples:]
    return learned, asked


def measure(
    judges: Mapping[str, Judge], asked: Sequence[Remark], rounds: int
) -> dict[str, tuple[float, list[float]]]:
    """Of each way the share that is right and the texts per second of each round."""
    found: dict[str, tuple[float, list[float]]] = {}
    for judge in judges.values():
        judge(asked[0][0])
    for number in range(rounds):
        for name, judge in judges.items():
            start = time.process_time()
            right = sum(judge(text) == label for text, label in asked)
            speed = len(asked) / (time.process_time() - start)
            found.setdefault(name, (right / len(asked), []))[1].append(speed)
            print(f"round {number + 1} {name}: {speed:.1f} texts/s", flush=True)
    return found


def report(found: Mapping[str, tuple[float, list[float]]], title: str) -> str:
    """A table in Markdown; the slowest way is 1."""
    medians = {name: statistics.median(speeds) for name, (_, speeds) in found.items()}
    lines = [f"| {title} | right | texts/s of one core | times generating |", "|---|---|---|---|"]
    for name, (right, speeds) in found.items():
        spread = f"{min(speeds):.1f} to {max(speeds):.1f}"
        times = medians[name] / medians["generated label"]
        lines.append(f"| {name} | {right:.1%} | {medians[name]:.1f} ({spread}) | {times:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--intents", type=int, default=20)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--banking", action="store_true", help="Banking77 instead of CLINC150")
    given = parser.parse_args()
    learned, asked = (banking if given.banking else clinc)(given.data, given.intents)
    order = np.random.default_rng(0).permutation(len(asked))[: given.texts]
    asked = [asked[place] for place in order]
    labels = sorted({label for _, label in learned})
    listed = ", ".join(labels)

    with LLM("embed", threads=1) as encoder, LLM("mini", threads=1) as decoder:
        head = encoder.fit_classifier(learned)

        def ask(text: str) -> str:
            return QUESTION.format(text=text, labels=listed)

        judges: dict[str, Judge] = {
            "encoder and head": lambda text: head.classify(text)[0].label,
            "scored labels": lambda text: decoder.choose(ask(text), labels).label,
            "generated label": lambda text: decoder.generate(
                ask(text), choice=[" " + label for label in labels], temperature=0, max_tokens=32
            ).text.strip(),
        }
        found = measure(judges, asked, given.rounds)
    title = f"{len(labels)} labels, {len(asked)} texts of {'Banking77' if given.banking else 'CLINC150'}"
    print("\n" + report(found, title))


if __name__ == "__main__":
    main()
