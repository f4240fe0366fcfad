"""A small decoder scores first, and its answer is taken where a certified threshold allows.

A large one answers the rest. Of the rows that are computed together a sample is scored by both, chosen by the
hash of the row. From which margin on the small one answers alone is certified on it (`gateway.certificate`):
with `confidence`, at most 1 - `accuracy` of the answers taken from it differ from the large one's. Drawn
without replacement, the sample has lighter tails than the binomial distribution, by which the certificate
counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.data.decoding import Decoder, Decoding
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost
from headrace.gateway.certificate import certify, least_examples, thresholds_of

Scores = NDArray[np.float64]
CONFIDENCE = 0.95
SAMPLES = 4
"""Of the rows that it takes to certify a threshold without an error."""
OPTIONS = ("accuracy", "small")


class SmallFirst:
    """Two decoders of one call."""

    def __init__(self, site: CheckedCall, large: Decoder) -> None:
        self._site, self._large = site, large
        self.accuracy = site.number_option("accuracy", None, 0.5, 0.999, whole=False)
        self._small = Decoder(site, site.text_option("small"))
        if (self.accuracy is None) != (self._small.name is None):
            raise site.refused(
                "accuracy needs a small model that answers where it may, and small needs accuracy: write"
                " accuracy := 0.95, small := 'name'"
            )

    async def open(self, work: StatementWork) -> str:
        """What names both models, once the large one is open."""
        found = await self._small.open(work)
        if not self._small.is_local:
            raise self._site.refused(f"{self._small.name} is a remote model, which tells no probabilities")
        if self._small.name == self._large.name:
            raise self._site.refused(f"{self._small.name} is both the small and the large model")
        return f"{found}{float(self.accuracy)!r}"

    async def cost(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding, answers: Sequence[str]
    ) -> list[RowCost]:
        """The most of each row: both models read it."""
        large = await self._large.scored_cost(work, rows, decoding, answers)
        small = await self._small.scored_cost(work, rows, decoding, answers)
        return [
            RowCost(one.prompt_tokens + other.prompt_tokens, requests=2, exact=False)
            for one, other in zip(large, small, strict=True)
        ]

    async def score(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding, answers: Sequence[str]
    ) -> AsyncGenerator[tuple[Sequence[int], Scores]]:
        """See `Decoder.score`. Rows come once each, by one of the models."""
        risk = 1 - float(self.accuracy)
        count = SAMPLES * least_examples(risk, CONFIDENCE)
        if len(rows) < 2 * count:
            self._tell(work, f"{len(rows):,} rows are too few for {count:,} that both answer")
            async for found in self._by_large(work, rows, range(len(rows)), decoding, answers):
                yield found
            return
        small = np.empty((len(rows), len(answers)), np.float64)
        async with aclosing(self._small.score(work, rows, decoding, answers)) as portions:
            async for places, scores in portions:
                small[places] = scores
                yield (), scores[:0]
        order = sorted(range(len(rows)), key=lambda place: _hash(rows[place]))
        sample, rest = order[:count], sorted(order[count:])
        differs: dict[int, bool] = {}
        async for places, scores in self._by_large(work, rows, sample, decoding, answers):
            best = scores.argmax(axis=1) != small[list(places)].argmax(axis=1)
            differs |= dict(zip(places, best.tolist(), strict=True))
            yield places, scores
        margins = _margins(small)
        least = thresholds_of(margins[rest], count, risk=risk, confidence=CONFIDENCE)
        certified = certify(
            margins[sample], [differs[place] for place in sample], least, risk=risk, confidence=CONFIDENCE
        )
        taken = [] if certified is None else [one for one in rest if margins[one] >= certified.threshold]
        yield taken, small[taken]
        others = sorted(set(rest) - set(taken))
        wrong = sum(differs.values())
        self._tell(
            work,
            f"{self._small.name} answered {len(taken):,} of {len(rows):,} rows, {self._large.name}"
            f" {len(rows) - len(taken):,}, {count:,} of them as a sample, in which {wrong:,} differed",
        )
        async for found in self._by_large(work, rows, others, decoding, answers):
            yield found

    def _tell(self, work: StatementWork, what: str) -> None:
        work.warnings[f"{self._site.function}: {what}"] = None

    async def _by_large(
        self,
        work: StatementWork,
        rows: Sequence[Arguments],
        places: Sequence[int],
        decoding: Decoding,
        answers: Sequence[str],
    ) -> AsyncGenerator[tuple[Sequence[int], Scores]]:
        part = [rows[place] for place in places]
        async with aclosing(self._large.score(work, part, decoding, answers)) as portions:
            async for numbers, scores in portions:
                yield [places[number] for number in numbers], scores


def _margins(scores: Scores) -> Scores:
    """[rows]: by how much the best answer is likelier than the next, as a difference of logarithms."""
    ordered = np.sort(scores, axis=1)
    return ordered[:, -1] - ordered[:, -2]


def _hash(row: Arguments) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(row), digest_size=16).digest()
