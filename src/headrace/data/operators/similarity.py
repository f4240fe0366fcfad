"""`similarity(a, b)`: the cosine of the vectors of two texts, from -1 to 1."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.encoding import TextEncoder, cosine
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator
from headrace.ops.value import Array

AT_A_TIME = 2048
"""Pairs whose vectors are in memory."""


class Similarity(SqlOperator):
    """`similarity(question, answer)`. Of vectors that are there DuckDB computes it:
    list_cosine_similarity."""

    type = "DOUBLE"

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_options(())
        site.check_count(2, 2, f"{site.function}(text, text)")
        self.encoder = TextEncoder(self.model)

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        return await self.encoder.open(work)

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`. A text counts with the first pair that it is in."""
        pairs = [self.site.texts(row) for row in rows]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        left = dict(zip(texts, await self.encoder.tokens(work, texts), strict=True))
        return [RowCost(sum(left.pop(text, 0) for text in pair)) for pair in pairs]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        vectors: dict[str, Array] = {}
        for start in range(0, len(rows), AT_A_TIME):
            pairs = [self.site.texts(row) for row in rows[start : start + AT_A_TIME]]
            wanted = dict.fromkeys(text for pair in pairs for text in pair)
            vectors = {text: vector for text, vector in vectors.items() if text in wanted}
            texts = [text for text in wanted if text not in vectors]
            async for places, found in self.encoder.vectors(work, texts):
                vectors |= {texts[place]: vector for place, vector in zip(places, found, strict=True)}
            yield [
                RowValue(start + place, cosine(vectors[first], vectors[second]))
                for place, (first, second) in enumerate(pairs)
            ]


OPERATOR = Similarity
