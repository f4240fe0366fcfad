"""`ai_filter(question, col…)`: whether a model finds yes likelier than no."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from headrace.data.decoding import Decoder, Decoding
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator
from headrace.data.questions import Value
from headrace.data.small_first import OPTIONS, SmallFirst

ANSWERS = ("yes", "no")


class AiFilter(SqlOperator):
    """`WHERE ai_filter('Is this about money?', body)`. Nothing is generated: both answers are scored."""

    type = "BOOLEAN"
    is_condition = True
    options: Sequence[str] = OPTIONS

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        self.check()
        self._decoding = Decoding(prompt=lambda row: self.question(site.texts(row)), sampling={})
        self._decoder = Decoder(site, self.model)
        self._cascade = SmallFirst(site, self._decoder) if set(OPTIONS) & set(site.options) else None

    def check(self) -> None:
        """Refuse arguments and options that mean nothing."""
        self.site.check_options(self.options)
        self.site.check_count(1, None, f"{self.site.operator}(question, column…)")

    def question(self, texts: Sequence[str]) -> str:
        """What the model is asked."""
        question, *rest = texts
        return "\n\n".join((f"{question}\nAnswer yes or no.", *rest))

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        found = await self._decoder.open(work)
        if not self._decoder.is_local:
            raise self.site.refused(f"{self.model} is a remote model, which tells no probabilities")
        return found if self._cascade is None else f"{found}{await self._cascade.open(work)}"

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`."""
        if self._cascade is not None:
            return await self._cascade.cost(work, rows, self._decoding, ANSWERS)
        return await self._decoder.scored_cost(work, rows, self._decoding, ANSWERS)

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        scorer = self._cascade or self._decoder
        async for places, scores in scorer.score(work, rows, self._decoding, ANSWERS):
            yield [
                RowValue(place, self.value(float(yes - no)))
                for place, (yes, no) in zip(places, scores, strict=True)
            ]

    def value(self, margin: float) -> Value:
        """The value by how much likelier yes is, as a difference of natural logarithms."""
        return margin > 0


OPERATOR = AiFilter
