"""Which of a guard's topics a text is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.engine.unit_rows import unit_rows
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest
from headrace.ops.value import Array
from headrace.tasks.few_shot import LogisticRegression, fit
from headrace.tasks.guards.settings import GuardSettings
from headrace.tasks.label_scores import Classification
from headrace.tasks.zero_shot import zero_shot

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

TOPIC_TEMPLATE = "This text is about {}."


class TopicClassifiers:
    """Classifiers of topics, fitted when they are first used with a model."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._fitted: dict[str, tuple[GuardSettings, str, int, LogisticRegression]] = {}

    async def topic(self, name: str, guard: GuardSettings, text: str, call: CallContext) -> Classification:
        """The probabilities of the guard's topics: by an embedder and the examples, or without any as
        `zero_shot` does. Long texts are cut, with a warning."""
        if not all(guard.topics.values()):
            labels = tuple(guard.topics)
            [found] = await zero_shot(
                self._runner,
                guard.model,
                [text],
                labels,
                call,
                hypothesis_template=TOPIC_TEMPLATE,
                truncate=True,
            )
            return found
        async with self._runner.lease(guard.model, call, "embed") as model:
            regression = await self._regression(name, guard, model, call)
            [found] = regression.classify(await self._vectors(model, [text], call))
        return found

    async def _regression(
        self, name: str, guard: GuardSettings, model: LoadedModel, call: CallContext
    ) -> LogisticRegression:
        known = self._fitted.get(name)
        if known is not None and known[:3] == (guard, model.name, model.created_s):
            return known[3]
        texts = [text for several in guard.topics.values() for text in several]
        labels = [topic for topic, several in guard.topics.items() for _ in several]
        vectors = await self._vectors(model, texts, call)
        fitted = await self._runner.in_thread(model, lambda: fit(vectors, labels))
        self._fitted[name] = (guard, model.name, model.created_s, fitted)
        return fitted

    async def _vectors(self, model: LoadedModel, texts: list[str], call: CallContext) -> Array:
        request = EmbeddingRequest(id=new_id(), model=model.name, inputs=tuple(texts), truncate=True)
        return unit_rows(np.concatenate(await self._runner.rows(request, call)))
