"""`similarity(a, b)`: the cosine of the vectors of two texts, from -1 to 1."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.encoding import TextEncoder
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator


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
        """See `SqlOperator.cost`."""
        pairs = [self.site.texts(row) for row in rows]
        return [RowCost(count) for count in await self.encoder.pair_tokens(work, pairs)]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        async for start, found in self.encoder.cosines(work, [self.site.texts(row) for row in rows]):
            yield [RowValue(start + place, value) for place, value in enumerate(found)]


OPERATOR = Similarity
