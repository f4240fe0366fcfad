"""`classify(col, ['a', 'b'])`: the label that fits a text best.

A model of entailment does this where there is one, else a decoder that is named, else the vectors of an
embedder, else the default decoder, by the probability of each label as its answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import numpy as np

from headrace.data.decoding import Decoder, Decoding
from headrace.data.encoding import TextEncoder
from headrace.data.model_work import StatementWork, model_identity
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator, labels_of
from headrace.data.small_first import OPTIONS, SmallFirst
from headrace.engine.unit_rows import unit_rows
from headrace.inference.call_context import CallContext
from headrace.ops.value import Array
from headrace.tasks.label_scores import Classification, Doubles
from headrace.tasks.task_limits import check_labels
from headrace.tasks.zero_shot import MAX_JUDGED_PAIRS, TEMPLATE, zero_shot
from headrace.weights.head import TaskName

MEANS: tuple[TaskName, ...] = ("zero_shot", "embed", "generate")


class Classify(SqlOperator):
    """`classify(body, ['complaint', 'praise'])`."""

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_count(2, 2, f"{site.function}(column, ['label', 'label'])")
        self._labels = labels_of(site, site.take_constant(1, "a list of labels"))
        check_labels(self._labels)
        site.check_options(OPTIONS)
        self._means: TaskName = "generate"
        self._decoder, self._encoder = Decoder(site, self.model), TextEncoder(self.model)
        self._decoding = Decoding(prompt=self._question, sampling={})
        self._cascade = SmallFirst(site, self._decoder) if set(OPTIONS) & set(site.options) else None
        self._label_vectors: Array | None = None

    @property
    def identity(self) -> Sequence[object]:
        """See `SqlOperator.identity`."""
        return [*super().identity, self._labels]

    def _question(self, row: Arguments) -> str:
        asked = f"Which of these fits the text best: {', '.join(self._labels)}? Answer with it alone."
        return f"{asked}\n\n{self.site.texts(row)[0]}"

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        runner = work.runner
        name = self.model
        if self._cascade is not None:  # between decoders
            name = name or runner.able("generate")
        name = name or runner.able("zero_shot") or runner.able("embed") or runner.able("generate")
        async with runner.lease(name, work.call(), *MEANS, "classify") as model:
            self.model, tasks = model.name, model.tasks
            judges = "classify" in tasks or "zero_shot" in tasks
            self._means = "zero_shot" if judges else "embed" if "embed" in tasks else "generate"
            identity = model_identity(model)
        self._decoder.name = self._encoder.name = self.model
        if self._means == "generate":
            await self._decoder.open(work)
        if self._cascade is None:
            return identity
        if self._means != "generate":
            raise self.site.refused(f"{self.model} is no decoder, which accuracy needs: name one as model")
        return f"{identity}{await self._cascade.open(work)}"

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`."""
        texts = [self.site.texts(row)[0] for row in rows]
        if self._cascade is not None:
            return await self._cascade.cost(work, rows, self._decoding, self._labels)
        if self._means == "generate":
            return await self._decoder.scored_cost(work, rows, self._decoding, self._labels)
        if self._means == "embed":
            return [RowCost(count) for count in await self._encoder.tokens(work, texts)]
        async with work.runner.lease(self.model, work.call(), "classify", "zero_shot") as model:
            written = [len(model.tokenizer.encode(TEMPLATE.replace("{}", one))) for one in self._labels]
            counts = await work.runner.in_thread(
                model, lambda: [len(model.tokenizer.encode(text)) for text in texts]
            )
        return [RowCost(count * len(written) + sum(written)) for count in counts]

    async def compute(
        self, work: StatementWork, rows: Sequence[Arguments]
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`."""
        texts = [self.site.texts(row)[0] for row in rows]
        if self._means == "generate":
            scorer = self._cascade or self._decoder
            async for places, scores in scorer.score(work, rows, self._decoding, self._labels):
                yield [self._best(place, row) for place, row in zip(places, scores, strict=True)]
        elif self._means == "embed":
            async for places, vectors in self._encoder.vectors(work, texts):
                labels = await self._vectors_of_labels(work)
                # One text at a time: a product of matrices may round otherwise with more rows.
                yield [
                    self._best(place, labels @ vector) for place, vector in zip(places, vectors, strict=True)
                ]
        else:
            size = max(1, MAX_JUDGED_PAIRS // len(self._labels) // 4)
            for start in range(0, len(texts), size):
                part = texts[start : start + size]

                async def judged(call: CallContext, part: Sequence[str] = part) -> list[Classification]:
                    return await zero_shot(work.runner, self.model, part, self._labels, call)

                found = await work.asked(judged)
                yield [RowValue(start + place, one.label) for place, one in enumerate(found)]

    def _best(self, place: int, scores: Array | Doubles) -> RowValue:
        return RowValue(place, self._labels[int(np.argmax(scores))])

    async def _vectors_of_labels(self, work: StatementWork) -> Array:
        """[labels, size], each of length 1."""
        if self._label_vectors is None:
            texts = [TEMPLATE.replace("{}", label) for label in self._labels]
            found: dict[int, Array] = {}
            async for places, vectors in self._encoder.vectors(work, texts):
                found |= dict(zip(places, vectors, strict=True))
            self._label_vectors = unit_rows(np.stack([found[place] for place in range(len(texts))]))
        return self._label_vectors


OPERATOR = Classify
