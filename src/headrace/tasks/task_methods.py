"""The methods of `LLM` and `AsyncLLM` for tasks, which both make of one coroutine each."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace.chat.messages import messages_from_openai
from headrace.engine.unit_rows import unit_rows
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import Messages, new_call, new_id
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.ops.value import Array
from headrace.tasks import choose as choosing
from headrace.tasks import few_shot
from headrace.tasks import rerank as reranking
from headrace.tasks.classify import Classification
from headrace.tasks.few_shot import TextClassifier
from headrace.tasks.rerank import DocumentScore, PairOptions
from headrace.tasks.task_limits import check_texts
from headrace.tasks.zero_shot import TEMPLATE, zero_shot

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.inference.model_runner import ModelRunner

LOG = logging.getLogger("headrace.llm")
T = TypeVar("T")
Examples = Mapping[str, Sequence[str]] | Sequence[tuple[str, str]]


@contextmanager
def told_call() -> Generator[CallContext]:
    """The call of a task. Its warnings are logged when the block ends: results have no place for them."""
    call = new_call()
    yield call
    for warning in call.warnings:
        LOG.warning("%s", warning.message)


class TaskWork:
    """What the methods do, as coroutines of a model's runner."""

    runner: ModelRunner

    @property
    @abstractmethod
    def model(self) -> LoadedModel:
        """The loaded model."""

    @abstractmethod
    def _check_open(self) -> None: ...

    async def _rerank(
        self, query: str, documents: Sequence[str], top_n: int | None, options: PairOptions
    ) -> list[DocumentScore]:
        self._check_open()
        with told_call() as call:
            return await reranking.rerank(
                self.runner, None, query, list(documents), call, top_n=top_n, options=options
            )

    async def _score(self, pairs: Sequence[tuple[str, str] | TextPair], options: PairOptions) -> list[float]:
        self._check_open()
        check_texts(pairs, "pairs")
        read = [pair if isinstance(pair, TextPair) else TextPair(*pair) for pair in pairs]
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
                [texts] if isinstance(texts, str) else list(texts),
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

    def _classifier(self, embed: Callable[[Sequence[str]], Array], folder: str | Path) -> TextClassifier:
        size = self.model.engine.limits.embedding_size
        return TextClassifier.load(folder, self.model.name, embed, size)


class BlockingTasks(TaskWork):
    """Methods of `LLM`."""

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, T]) -> T: ...

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
        max_tokens_per_doc: int | None = None,
        raw: bool = False,
        instruction: str | None = None,
    ) -> list[DocumentScore]:
        """The documents as (index, score), best first, by a cross-encoder, a model for late interaction, an
        embedder (cosine) or a decoder that reranks (Qwen3-Reranker, or any with an `instruction`).

        Scores of cross-encoders and decoders are in (0, 1); `raw` ones are logits. ContextLengthExceeded
        where a pair is too long, unless `truncate` or `max_tokens_per_doc` cut it.
        """
        options = PairOptions(
            truncate=truncate, max_tokens_per_doc=max_tokens_per_doc, raw=raw, instruction=instruction
        )
        return self._run(self._rerank(query, documents, top_n, options))

    def score(
        self,
        pairs: Sequence[tuple[str, str] | TextPair],
        *,
        truncate: bool = False,
        raw: bool = False,
        instruction: str | None = None,
    ) -> list[float]:
        """The score of each pair (query, document), in the order of the pairs; else as `rerank`."""
        options = PairOptions(truncate=truncate, raw=raw, instruction=instruction)
        return self._run(self._score(pairs, options))

    def zero_shot(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        truncate: bool = False,
    ) -> list[Classification]:
        """Of each text the probabilities of labels of your own, by a model of entailment (as
        ZeroShotClassificationPipeline of transformers), an embedder or a decoder."""
        return self._run(self._zero_shot(texts, labels, hypothesis_template, multi_label, truncate))

    def choose(self, prompt: str | Messages, labels: Sequence[str], *, raw: bool = False) -> Classification:
        """The probability of each label as what follows a text, or answers messages, by a decoder. Nothing is
        generated: the tokens of the labels are scored. `raw` scores are log-probabilities."""
        return self._run(self._choose(prompt, labels, raw))

    def fit_classifier(self, examples: Examples, *, strength: float = 0.01) -> TextClassifier:
        """A classifier of texts from a few examples of each label: pairs (text, label), or texts by label.

        The model must be an embedder. Training takes seconds and gives the same numbers each time; a larger
        `strength` keeps the weights smaller.
        """
        texts, labels = few_shot.check_examples(examples)
        vectors = self._run(self._unit_vectors(texts))
        return TextClassifier(
            few_shot.fit(vectors, labels, strength=strength), self.model.name, self._embed_units
        )

    def load_classifier(self, folder: str | Path) -> TextClassifier:
        """What `TextClassifier.save` wrote, made with this model."""
        return self._classifier(self._embed_units, folder)

    def _embed_units(self, texts: Sequence[str]) -> Array:
        return self._run(self._unit_vectors(texts))


class AsyncTasks(TaskWork):
    """Methods of `AsyncLLM`."""

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
        max_tokens_per_doc: int | None = None,
        raw: bool = False,
        instruction: str | None = None,
    ) -> list[DocumentScore]:
        """See `LLM.rerank`."""
        options = PairOptions(
            truncate=truncate, max_tokens_per_doc=max_tokens_per_doc, raw=raw, instruction=instruction
        )
        return await self._rerank(query, documents, top_n, options)

    async def score(
        self,
        pairs: Sequence[tuple[str, str] | TextPair],
        *,
        truncate: bool = False,
        raw: bool = False,
        instruction: str | None = None,
    ) -> list[float]:
        """See `LLM.score`."""
        return await self._score(pairs, PairOptions(truncate=truncate, raw=raw, instruction=instruction))

    async def zero_shot(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        truncate: bool = False,
    ) -> list[Classification]:
        """See `LLM.zero_shot`."""
        return await self._zero_shot(texts, labels, hypothesis_template, multi_label, truncate)

    async def choose(
        self, prompt: str | Messages, labels: Sequence[str], *, raw: bool = False
    ) -> Classification:
        """See `LLM.choose`."""
        return await self._choose(prompt, labels, raw)
