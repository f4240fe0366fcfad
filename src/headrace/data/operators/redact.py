"""`redact(col)`: a text without personal data, which placeholders such as <EMAIL_ADDRESS_1> stand for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import cast

from headrace.data.model_work import StatementWork, model_identity
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.model_entities import model_findings
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.task_limits import check_searched

AT_A_TIME = 64


class Redact(SqlOperator):
    """By patterns with checksums; with `model := 'tagger'` also what that finds, such as names. Placeholders
    are numbered within each text."""

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        if len(site.arguments) == 2 and site.arguments[1][1].constant:  # as Snowflake has it
            site.options["entities"] = site.take_constant(1, "a list of entities")
        site.check_options(("entities",))
        site.check_count(1, 1, f"{site.function}(column)")
        entities = site.options.get("entities")
        is_list = isinstance(entities, list) and all(isinstance(one, str) for one in entities)
        if entities is not None and not is_list:
            raise site.refused("entities is a list of names, such as ['EMAIL_ADDRESS']")
        self._entities = cast("list[str] | None", entities)
        self._analyzer = Analyzer(self._entities, with_model=self.model is not None)

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        if self.model is None:
            return "patterns"
        async with work.runner.lease(self.model, work.call(), "entities", "token_classify") as model:
            self.model = model.name
            return model_identity(model)

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`. Patterns take no tokens; a model reads each text once, in windows."""
        texts = [self.site.texts(row)[0] for row in rows]
        for text in texts:
            check_searched([text], "sql")
        if self.model is None:
            return [RowCost(0)] * len(rows)
        async with work.runner.lease(self.model, work.call()) as model:
            counts = await work.runner.in_thread(
                model, lambda: [len(model.tokenizer.encode(text, parse_special=False)) for text in texts]
            )
        return [RowCost(count) for count in counts]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        for start in range(0, len(rows), AT_A_TIME):
            texts = [self.site.texts(row)[0] for row in rows[start : start + AT_A_TIME]]
            found: list[list[RecognizerResult]] = [[] for _ in texts]
            if self.model is not None:
                call = work.call()
                found = await model_findings(
                    work.runner, self.model, texts, call, self._entities, self._analyzer.threshold
                )
                work.ended(call)
            yield [
                RowValue(start + place, Redactor(self._analyzer).redact(text, more).text)
                for place, (text, more) in enumerate(zip(texts, found, strict=True))
            ]


OPERATOR = Redact
