"""`rerank(query, col)`: how well a text answers a query, by a model that ranks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.encoding import TextEncoder
from headrace.data.model_work import StatementWork, model_identity
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator
from headrace.data.operators.similarity import Similarity
from headrace.inference.call_context import CallContext
from headrace.inference.requests import TextPair
from headrace.tasks.rerank import RERANKS, score_pairs

AT_A_TIME = 64


class Rerank(SqlOperator):
    """`ORDER BY rerank('late refund', body) DESC LIMIT 10`. Without a model that ranks it is the cosine of an
    embedder's vectors."""

    type = "DOUBLE"

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_options(())
        site.check_count(2, 2, f"{site.function}(query, column)")
        self._cosines: Similarity | None = None

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        runner = work.runner
        name = self.model or runner.able("rerank") or runner.able("embed")
        async with runner.lease(name, work.call(), *RERANKS) as model:
            self.model = model.name
            if "embed" in model.tasks:
                self._cosines = Similarity(self.site)
                self._cosines.encoder = TextEncoder(model.name)
                work.warnings[
                    f"rerank: {model.name} is an embedder: the scores are cosines of its vectors"
                ] = None
            identity = model_identity(model)
        if self._cosines is not None:
            await self._cosines.open(work)
        return identity

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`."""
        if self._cosines is not None:
            return await self._cosines.cost(work, rows)
        pairs = [self.site.texts(row) for row in rows]
        async with work.runner.lease(self.model, work.call()) as model:
            encode = model.tokenizer.encode_pair
            counts = await work.runner.in_thread(model, lambda: [len(encode(*pair)[0]) for pair in pairs])
        return [RowCost(count) for count in counts]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        if self._cosines is not None:
            async for found in self._cosines.compute(work, rows):
                yield found
            return
        for start in range(0, len(rows), AT_A_TIME):
            pairs = [TextPair(*self.site.texts(row)) for row in rows[start : start + AT_A_TIME]]

            async def scored(call: CallContext, pairs: Sequence[TextPair] = pairs) -> list[float]:
                return await score_pairs(work.runner, self.model, pairs, call)

            found = await work.asked(scored)
            yield [RowValue(start + place, score) for place, score in enumerate(found)]


OPERATOR = Rerank
