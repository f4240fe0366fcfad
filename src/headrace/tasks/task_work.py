"""What the methods of `LLM` and `AsyncLLM` for tasks do, as coroutines of a model's runner."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headrace.chat.messages import messages_from_openai
from headrace.engine.unit_rows import unit_rows
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import Messages, PromptLike, embedding_request, new_call, new_id
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.ops.value import Array
from headrace.tasks import choose as choosing
from headrace.tasks import few_shot, late_interaction
from headrace.tasks import rerank as reranking
from headrace.tasks.classify import classify
from headrace.tasks.entities import Entity, extract_entities
from headrace.tasks.entity_finders.search import EntityKeywords
from headrace.tasks.few_shot import Examples, LogisticRegression
from headrace.tasks.label_scores import Classification
from headrace.tasks.late_interaction import Role
from headrace.tasks.pii.keywords import RedactKeywords, redactor_of
from headrace.tasks.pii.model_entities import redact_texts
from headrace.tasks.pii.redaction import Redacted, restore
from headrace.tasks.rerank import DocumentScore, PairOptions
from headrace.tasks.sparse import SparseVector, sparse
from headrace.tasks.task_limits import check_texts
from headrace.tasks.zero_shot import zero_shot
from headrace.weights.fitted_head import encoder_name

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.inference.model_runner import ModelRunner

LOG = logging.getLogger("headrace.llm")
T = TypeVar("T")


@contextmanager
def told_call() -> Generator[CallContext]:
    """The call of a task. Its warnings are logged when the block ends: results have no place for them."""
    call = new_call()
    yield call
    for warning in call.warnings:
        LOG.warning("%s", warning.message)


def several(texts: str | Sequence[T]) -> list[str | T]:
    """One text or several as several."""
    return [texts] if isinstance(texts, str) else list(texts)


class TaskWork:
    """Coroutines of both classes; `runner` is the model's."""

    runner: ModelRunner

    @property
    @abstractmethod
    def model(self) -> LoadedModel:
        """The loaded model."""

    @abstractmethod
    def _check_open(self) -> None: ...

    async def _vectors(
        self,
        texts: Sequence[PromptLike],
        dimensions: int | None,
        prompt_name: str | None = None,
        *,
        truncate: bool = False,
    ) -> list[Array]:
        self._check_open()
        with told_call() as call:
            request = embedding_request(texts, dimensions, prompt_name, truncate=truncate)
            return await self.runner.rows(request, call)

    async def _classify(
        self, texts: str | Sequence[str | TextPair], truncate: bool, raw: bool
    ) -> list[Classification]:
        self._check_open()
        with told_call() as call:
            return await classify(self.runner, None, several(texts), call, truncate=truncate, raw=raw)

    async def _sparse(self, texts: str | Sequence[str], truncate: bool) -> list[SparseVector]:
        self._check_open()
        with told_call() as call:
            return await sparse(self.runner, None, several(texts), call, truncate=truncate)

    async def _token_vectors(self, texts: str | Sequence[str], role: Role, truncate: bool) -> list[Array]:
        self._check_open()
        with told_call() as call:
            return await late_interaction.token_vectors(
                self.runner, None, several(texts), call, role=role, truncate=truncate
            )

    async def _redact(self, texts: str | Sequence[str], keywords: RedactKeywords) -> list[Redacted]:
        """By patterns, and by the model where it finds entities."""
        self._check_open()
        finds_entities = not {"entities", "token_classify"}.isdisjoint(self.model.tasks)
        redactor = redactor_of(keywords, with_model=finds_entities)
        given = several(texts)
        if not finds_entities:
            return [redactor.redact(text) for text in given]
        wanted = keywords.get("entities")
        with told_call() as call:
            return await redact_texts(redactor, given, self.runner, None, call, wanted)

    def restore(self, text: str, vault: Mapping[str, str]) -> str:
        """The text with the placeholders of `redact` replaced by what they stand for."""
        return restore(text, vault)

    def _size(self, dimensions: int | None) -> int:
        return self.model.engine.limits.embedding_size if dimensions is None else dimensions

    async def _entities(
        self, texts: str | Sequence[str], labels: Sequence[str] | None, options: EntityKeywords
    ) -> list[list[Entity]]:
        self._check_open()
        with told_call() as call:
            return await extract_entities(self.runner, None, several(texts), labels, call, **options)

    async def _rerank(
        self, query: str, documents: Sequence[str], top_n: int | None, options: PairOptions
    ) -> list[DocumentScore]:
        self._check_open()
        with told_call() as call:
            return await reranking.rerank(
                self.runner, None, query, documents, call, top_n=top_n, options=options
            )

    async def _score(self, pairs: Sequence[tuple[str, str] | TextPair], options: PairOptions) -> list[float]:
        self._check_open()
        check_texts(pairs, "pairs")
        read = [reranking.as_pair(pair, index) for index, pair in enumerate(pairs)]
        with told_call() as call:
            return await reranking.score_pairs(self.runner, None, read, call, options)

    async def _zero_shot(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str],
        template: str,
        multi_label: bool,
        truncate: bool,
    ) -> list[Classification]:
        self._check_open()
        with told_call() as call:
            return await zero_shot(
                self.runner,
                None,
                several(texts),
                labels,
                call,
                hypothesis_template=template,
                multi_label=multi_label,
                truncate=truncate,
            )

    async def _choose(self, prompt: str | Messages, labels: Sequence[str], raw: bool) -> Classification:
        self._check_open()
        asked = prompt if isinstance(prompt, str) else messages_from_openai(list(prompt))
        with told_call() as call:
            return await choosing.choose(self.runner, None, asked, labels, call, raw=raw)

    async def _unit_vectors(self, texts: Sequence[str]) -> Array:
        self._check_open()
        request = EmbeddingRequest(id=new_id(), inputs=tuple(texts))
        with told_call() as call:
            return unit_rows(np.concatenate(await self.runner.rows(request, call)))

    async def _fitted(self, examples: Examples, strength: float) -> LogisticRegression:
        texts, labels = few_shot.check_examples(examples)
        vectors = await self._unit_vectors(texts)
        return await self.runner.in_thread(
            self.model, lambda: few_shot.fit(vectors, labels, strength=strength)
        )

    def _loaded(self, folder: str | Path) -> LogisticRegression:
        size = self.model.engine.limits.embedding_size
        return few_shot.load(Path(folder), size, (self.model.name, self._encoder))

    @property
    def _encoder(self) -> str:
        """What finds this model again."""
        return encoder_name(self.model.name, self.model.folder)
