"""Whether `accuracy := …, small := …` of SQL keeps its bound: trials with models whose answers are known.

    python bench/data/certified_cascade.py --trials 1000

In each trial rows, and what both models say of them, are drawn anew; the code that takes answers is the
product's. A trial fails where more than 1 - accuracy of the answers that are taken from the small model
differ from the large one's. At most 5 % of trials may.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.data.small_first import SmallFirst

ROWS = 4000
NAMES = ("no", "yes")


class Known:
    """A model whose scores are known before: [rows, 2] logarithms."""

    def __init__(self, name: str, scores: np.ndarray, rows: Sequence[Any]) -> None:
        self.name, self._scores = name, scores
        self._places = {row: place for place, row in enumerate(rows)}
        self.asked: set[int] = set()

    async def score(
        self, work: object, rows: Sequence[Any], decoding: object, answers: Sequence[str]
    ) -> AsyncGenerator[tuple[Sequence[int], np.ndarray]]:
        """See `Decoder.score`."""
        places = [self._places[row] for row in rows]
        self.asked.update(places)
        yield range(len(rows)), self._scores[places]


async def trial(random: np.random.Generator, accuracy: float, most: float) -> tuple[float, float]:
    """Which part of the rows the small model answers, and which part of these differs. Its margins are
    exponential; it differs with the probability `most` exp(-margin)."""
    rows = [(str(number),) for number in range(ROWS)]
    margin = random.exponential(1.5, ROWS)
    best = random.integers(0, 2, ROWS)
    differs = random.random(ROWS) < most * np.exp(-margin)
    small = np.zeros((ROWS, 2))
    small[np.arange(ROWS), 1 - best] = -margin
    large = np.zeros((ROWS, 2))
    large[np.arange(ROWS), np.where(differs, best, 1 - best)] = -5.0
    cascade: Any = SmallFirst.__new__(SmallFirst)
    cascade.accuracy, cascade._site = accuracy, SimpleNamespace(function="ai_filter")
    cascade._large = Known("large", large, rows)
    cascade._small = Known("small", small, rows)
    work: Any = SimpleNamespace(warnings={})
    seen = 0
    async for places, _ in cascade.score(work, rows, None, NAMES):
        seen += len(places)
    assert seen == ROWS  # each row once
    taken = np.ones(ROWS, bool)
    taken[list(cascade._large.asked)] = False
    return float(taken.mean()), float(differs[taken].mean()) if taken.any() else 0.0


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    given = parser.parse_args()
    random = np.random.default_rng(30)
    print("| accuracy | differs at margin 0 | trials | small answers | above the bound |")
    print("|---|---|---|---|---|")
    for accuracy in (0.9, 0.95):
        for most in (0.5, 0.3):
            found = [asyncio.run(trial(random, accuracy, most)) for _ in range(given.trials)]
            failed = sum(wrong > 1 - accuracy for _, wrong in found)
            part = float(np.mean([share for share, _ in found]))
            print(
                f"| {accuracy} | {most} | {given.trials:,} | {part:.1%} |"
                f" {failed} ({failed / given.trials:.1%}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
