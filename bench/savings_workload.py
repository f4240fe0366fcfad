"""A workload for `headrace bench savings` with texts that people wrote.

    python bench/savings_workload.py DATA --out traffic.jsonl

DATA is the folder of shared data. Questions of customers from Banking77 are what is to be labeled. Chats,
questions for SQL and texts to extract from are those of the generator.
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
from pathlib import Path

import numpy as np

from headrace.economy.savings.traffic import LABEL, Maker, RecordedRequest, made_traffic, write_traffic

LABELS = 20  # of the 77, the most frequent


def label_maker(data: Path) -> Maker:
    """Texts of Banking77, none twice."""
    content = lzma.decompress((data / "intents/banking77/train.csv.xz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(content)))
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["category"]] = counts.get(row["category"], 0) + 1
    names = sorted(counts, key=lambda name: -counts[name])[:LABELS]
    kept = [row for row in rows if row["category"] in names]
    order = iter(np.random.default_rng(1).permutation(len(kept)).tolist())
    instruction = f"Say what the customer wants. Answer with exactly one of: {', '.join(names)}."

    def make(random: np.random.Generator) -> RecordedRequest:
        row = kept[next(order)]
        return RecordedRequest(
            at_s=0.0, kind=LABEL, instruction=instruction, prompt=row["text"], answer=row["category"]
        )

    return make


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--per-second", type=float, default=1.5)
    parser.add_argument("--history", type=int, default=600)
    asked = parser.parse_args()
    made = {LABEL: label_maker(asked.data)}
    requests = made_traffic(asked.requests, asked.per_second, asked.history, made=made)
    write_traffic(requests, asked.out)
    print(f"wrote {len(requests):,} requests, {asked.history:,} of each task as history, to {asked.out}")


if __name__ == "__main__":
    main()
