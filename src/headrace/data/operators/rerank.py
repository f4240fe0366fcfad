"""`rerank(query, col)`: how well a text answers a query, by a model that ranks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.encoding import TextEncoder
from headrace.data.model_work import StatementWork, model_identity
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator
from headrace.data.operators.similarity import Similarity
from headrace.errors import ModelNotFound
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.tasks.rerank import RERANKS, score_pairs

AT_A_TIME = 64


class Rerank(SqlOperator):
    """`ORDER BY rerank('late refund', body) DESC LIMIT 10`. Without a model that ranks it is the cosine of an
    embedder's vectors. A remote reranker reads all rows of a query together."""

    type = "DOUBLE"

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_options(())
        site.check_count(2, 2, f"{site.function}(query, column)")
        self._cosines: Similarity | None = None
        self._is_remote = False

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        runner = work.runner
        name = self.model or runner.able("rerank") or runner.able("embed")
        try:
            return await self._open_here(work, name)
        except ModelNotFound:
            if name is None:
                raise
            self.model, self._is_remote = name, True  # the handler knows it, or says that there is none
            return ""

    async def _open_here(self, work: StatementWork, name: str | None) -> str:
        runner = work.runner
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
        if self._is_remote:
            return [self._remote_cost(work, TextPair(*self.site.texts(row))) for row in rows]
        pairs = [self.site.texts(row) for row in rows]
        async with work.runner.lease(self.model, work.call()) as model:
            encode = model.tokenizer.encode_pair
            counts = await work.runner.in_thread(model, lambda: [len(encode(*pair)[0]) for pair in pairs])
        return [RowCost(count) for count in counts]

    def _remote_cost(self, work: StatementWork, pair: TextPair) -> RowCost:
        request = EmbeddingRequest(id=new_id(), model=self.model, task="rerank", inputs=(pair,))
        most = None if work.remote is None else work.remote.most(request)
        if most is None:
            return RowCost(0, unpriced="there is no such model")
        return RowCost(
            most.prompt_tokens,
            exact=False,
            estimate=most.estimate,
            nano_usd=most.nano_usd,
            unpriced=most.missing,
        )

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
