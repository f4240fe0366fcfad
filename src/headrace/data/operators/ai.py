"""`ai(prompt, col…)`: the answer of a model to a prompt, behind which the columns stand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.decoding import Decoder, Decoding
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator

MAX_TOKENS = 256
BETWEEN = "\n\n"


class Ai(SqlOperator):
    """`ai('Summarize:', body, max_tokens := 40)`. Greedy unless `temperature` says otherwise."""

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_options(("max_tokens", "temperature", "seed", "system"))
        site.check_count(1, None, "ai(prompt, column…)")
        temperature = site.number_option("temperature", 0, 0, 2, whole=False)
        seed = site.number_option("seed", None, 0, 2**63 - 1)
        self.keeps = temperature == 0 or seed is not None
        sampling = {
            "max_tokens": site.number_option("max_tokens", MAX_TOKENS, 1, 2**20),
            "temperature": float(temperature),
        }
        self._decoding = Decoding(
            prompt=lambda row: BETWEEN.join(site.texts(row)),
            sampling=sampling if seed is None else sampling | {"seed": seed},
            system=site.text_option("system"),
        )
        self._decoder = Decoder(site, self.model)

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        return await self._decoder.open(work)

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`."""
        return await self._decoder.cost(work, rows, self._decoding)

    async def bounds(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost] | None:
        """See `SqlOperator.bounds`."""
        return await self._decoder.bounds(work, rows, self._decoding)

    def compute(self, work: StatementWork, rows: Sequence[Arguments]) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        return self._decoder.generate(work, rows, self._decoding)


OPERATOR = Ai
