"""One judgment by an encoder's vector, by scoring labels and by generating the label: accuracy and speed.

    .venv/bin/python bench/encoders/judgments.py DATA [--intents 20] [--texts 100] [--rounds 5]

DATA is the folder of shared data. The texts are remarks of CLINC150's test part, of the first intents by
name; the examples are those of its training part. All ways see the same texts, in turn in each round, one
text at a time (or all together) on one thread. Processor time is that of the process, so other work of the
machine changes it little; requests per second are of the clock, and it changes them. Examples of Banking77
(--banking) are of a domain that no model here has learned.
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

Judge = Callable[[Sequence[str]], list[str]]
"""From texts to their labels."""
Round = tuple[float, float]
"""Seconds of the clock and of the processor for a text."""
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
) -> dict[str, tuple[float, list[Round]]]:
    """Of each way the share that is right and the times of each round."""
    found: dict[str, tuple[float, list[Round]]] = {}
    texts, labels = [text for text, _ in asked], [label for _, label in asked]
    for judge in judges.values():
        judge(texts[:1])
    for number in range(rounds):
        for name, judge in judges.items():
            clock, processor = time.perf_counter(), time.process_time()
            said = judge(texts)
            took = (time.perf_counter() - clock) / len(asked), (time.process_time() - processor) / len(asked)
            right = sum(one == label for one, label in zip(said, labels, strict=True))
            found.setdefault(name, (right / len(asked), []))[1].append(took)
            print(f"round {number + 1} {name}: {took[1] * 1e3:.2f} ms of processor time a text", flush=True)
    return found


def report(found: Mapping[str, tuple[float, list[Round]]], title: str) -> str:
    """A table in Markdown, medians (least to most) of the rounds; generating is 1."""
    medians = {name: statistics.median(own for _, own in rounds) for name, (_, rounds) in found.items()}
    lines = [
        f"| {title} | right | requests/s | ms of processor time a text | times cheaper |",
        "|---|---|---|---|---|",
    ]
    for name, (right, rounds) in found.items():
        clock = statistics.median(took for took, _ in rounds)
        own = sorted(took * 1e3 for _, took in rounds)
        spread = f"{statistics.median(own):.2f} ({own[0]:.2f} to {own[-1]:.2f})"
        times = medians["generated label"] / medians[name]
        lines.append(f"| {name} | {right:.1%} | {1 / clock:.0f} | {spread} | {times:.1f} |")
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

        def generated(text: str) -> str:
            choice = [" " + label for label in labels]
            return decoder.generate(ask(text), choice=choice, temperature=0, max_tokens=32).text.strip()

        judges: dict[str, Judge] = {
            "encoder and head": lambda texts: [head.classify(text)[0].label for text in texts],
            "encoder and head, texts together": lambda texts: [one.label for one in head.classify(texts)],
            "labels scored by a decoder": lambda texts: [
                decoder.choose(ask(text), labels).label for text in texts
            ],
            "generated label": lambda texts: [generated(text) for text in texts],
        }
        found = measure(judges, asked, given.rounds)
    title = f"{len(labels)} labels, {len(asked)} texts of {'Banking77' if given.banking else 'CLINC150'}"
    print("\n" + report(found, title))


if __name__ == "__main__":
    main()
