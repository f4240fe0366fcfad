"""`ai_agg(col, instruction)`: an answer to an instruction on all texts of a group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from headrace.data.folding import Folding, Tree
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator

MAX_TOKENS = 256


class AiAgg(SqlOperator):
    """`SELECT kind, ai_agg(body, 'What do these ask for?' ORDER BY id) FROM mails GROUP BY kind`."""

    usage = "ai_agg(column, instruction)"

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_options(("max_tokens",))
        instruction = self.instruction()
        site.check_count(1, 1, self.usage)
        most = int(site.number_option("max_tokens", MAX_TOKENS, 1, 2**20))
        self._instruction = instruction
        self._folding = Folding(site, self.model, instruction, most)
        self._trees: dict[Arguments, Tree | None] = {}

    def instruction(self) -> str:
        """What is asked of the texts."""
        found = self.site.take_constant(1, "an instruction")
        if not isinstance(found, str) or not found.strip():
            raise self.site.refused("the instruction is a text, such as 'What do these ask for?'")
        return found

    @property
    def identity(self) -> Sequence[object]:
        """See `SqlOperator.identity`."""
        return [*super().identity, self._instruction]

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        found = await self._folding.open(work)
        self.model = self._folding.model
        return found

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`. The trees stay until they are computed."""
        for row in rows:
            if row not in self._trees:
                self._trees[row] = await self._folding.tree(work, row[0])
        return [self._folding.cost(self._trees[row]) for row in rows]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        assert self.parts is not None
        await self.cost(work, rows)
        trees = [self._trees.pop(row) for row in rows]
        async with aclosing(self._folding.fold(work, trees, self.parts)) as portions:
            async for portion in portions:
                yield portion


OPERATOR = AiAgg
