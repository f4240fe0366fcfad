"""`embed(col)`: the vector of a text, as FLOAT[n]."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.encoding import TextEncoder
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator


class Embed(SqlOperator):
    """`embed(body)`, `embed(body, 'model')`."""

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        if len(site.arguments) == 2 and site.arguments[1][1].constant:  # Spice writes it so
            self.model = str(site.take_constant(1, "the model"))
        site.check_options(())
        site.check_count(1, 1, "embed(column)")
        self._encoder = TextEncoder(self.model)

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        found = await self._encoder.open(work)
        self.type = f"FLOAT[{self._encoder.size}]"
        return found

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`."""
        texts = [self.site.texts(row)[0] for row in rows]
        return [RowCost(count) for count in await self._encoder.tokens(work, texts)]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        texts = [self.site.texts(row)[0] for row in rows]
        async for places, vectors in self._encoder.vectors(work, texts):
            yield [
                RowValue(place, vector.astype("<f4").tobytes())
                for place, vector in zip(places, vectors, strict=True)
            ]


OPERATOR = Embed
