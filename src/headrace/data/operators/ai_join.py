"""`ai_join(left, right, criterion)`: whether a pair of texts, of two tables mostly, meets a criterion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from headrace.data.encoding import TextEncoder
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, RowCost, RowValue
from headrace.data.operators.ai_filter import AiFilter

MAX_PAIRS = 10_000
MOST_PAIRS = 10_000_000


class AiJoin(AiFilter):
    """`FROM mails JOIN topics ON ai_join(mails.body, topics.name, 'The text is about the topic.')`.

    Every different pair is asked for once, the left text before the right one. With `min_similarity` pairs
    whose vectors have a lower cosine are false and not asked for: other answers, for less.
    """

    def check(self) -> None:
        """See `AiFilter.check`."""
        site = self.site
        site.check_options(("max_pairs", "min_similarity", "embed_model"))
        site.check_count(3, 3, "ai_join(left, right, criterion)")
        criterion = site.take_constant(2, "a criterion")
        if not isinstance(criterion, str) or not criterion.strip():
            raise site.refused("the criterion is a text, such as 'Both are about the same order.'")
        self._criterion = criterion
        self.max_rows = int(site.number_option("max_pairs", MAX_PAIRS, 1, MOST_PAIRS))
        self._least = site.number_option("min_similarity", None, -1, 1, whole=False)
        embedder = site.text_option("embed_model")
        if embedder is not None and self._least is None:
            raise site.refused("embed_model has no effect without min_similarity")
        self._encoder = TextEncoder(embedder)

    def question(self, texts: Sequence[str]) -> str:
        """See `AiFilter.question`."""
        left, right = texts
        asked = f"Do two texts meet this criterion? {self._criterion}\nAnswer yes or no."
        return f"{asked}\n\nFirst: {left}\n\nSecond: {right}"

    @property
    def identity(self) -> Sequence[object]:
        """See `SqlOperator.identity`."""
        least = None if self._least is None else float(self._least)
        return [self.site.operator, self.site.constants, self._criterion, least]

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        found = await super().open(work)
        return found if self._least is None else f"{found}{await self._encoder.open(work)}"

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`. Which pairs are near enough is not known before: it counts all."""
        costs = await super().cost(work, rows)
        if self._least is None:
            return costs
        more = await self._encoder.pair_tokens(work, [self.site.texts(row) for row in rows])
        return [
            RowCost(one.prompt_tokens + tokens, exact=False) for one, tokens in zip(costs, more, strict=True)
        ]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        near = list(range(len(rows)))
        if self._least is not None:
            far: set[int] = set()
            async for start, cosines in self._encoder.cosines(work, [self.site.texts(row) for row in rows]):
                found = [start + place for place, one in enumerate(cosines) if one < self._least]
                far.update(found)
                yield [RowValue(place, False) for place in found]
            near = [place for place in near if place not in far]
        async with aclosing(super().compute(work, [rows[place] for place in near])) as portions:
            async for portion in portions:
                yield [RowValue(near[one.index], one.value) for one in portion]


OPERATOR = AiJoin
