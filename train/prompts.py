"""Prompts of mini's tasks that were not in its training data, for `headrace bench speculative --prompts`.

    python train/prompts.py --data ../shared/data --out FOLDER [--count 64]

Writes command.jsonl (tasks in held-out wordings), sql.jsonl (questions of WikiSQL's test split) and
edit.jsonl (passages of held-out novels with a word to be changed).
"""

import packages  # noqa: F401  isort: skip

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from corpus import MissingData
from dialogue import Conversation
from sources import Sources, read_sources

SEED = 20261122


def held_out_jobs(sources: Sources, count: int) -> Mapping[str, Iterable[Conversation]]:
    """`count` conversations of each task, a function of the data."""
    random, edits = np.random.default_rng([SEED, 1]), sources.held_out_edits()
    commands = sources.everyday.held_out() + [
        talk for _, talk in sources.shell.held_out(count, SEED, everyday=True)
    ]
    return {
        "command": [commands[at] for at in random.permutation(len(commands))[:count]],
        "sql": [talk for _, talk in sources.sql.held_out(count, SEED, split="test")],
        "edit": [edits.draw(random) for _ in range(count)],
    }


def main() -> int:
    """0, or 1 if data are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with text/, sql/ and intents/")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files, made where it is not")
    parser.add_argument("--count", type=int, default=64, help="prompts of each job (64)")
    asked = parser.parse_args()
    try:
        jobs = held_out_jobs(read_sources(asked.data), asked.count)
    except MissingData as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, talks in jobs.items():
        lines = [json.dumps({"prompt": talk.messages[0]["content"]}) for talk in talks]
        (asked.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{', '.join(jobs)}: prompts in {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
