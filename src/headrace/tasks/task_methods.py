"""The methods of `LLM` and `AsyncLLM` for tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from headrace.inference.keywords import Messages, PromptLike
from headrace.inference.requests import TextPair
from headrace.ops.value import Array
from headrace.tasks.embed import pooled
from headrace.tasks.entities import Entity
from headrace.tasks.entity_finders.search import EntityKeywords
from headrace.tasks.few_shot import STRENGTH, AsyncTextClassifier, Examples, TextClassifier
from headrace.tasks.label_scores import Classification
from headrace.tasks.late_interaction import Role
from headrace.tasks.pii.keywords import RedactKeywords
from headrace.tasks.pii.redaction import Redacted
from headrace.tasks.rerank import DocumentScore, PairOptions
from headrace.tasks.sparse import SparseVector
from headrace.tasks.task_work import TaskWork, several
from headrace.tasks.zero_shot import TEMPLATE

T = TypeVar("T")


class BlockingTasks(TaskWork):
    """Methods of `LLM`."""

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, T]) -> T: ...

    def embed(
        self,
        texts: str | Sequence[PromptLike],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
    ) -> Array:
        """Vectors [texts, dimensions] of texts (or token ids), float32, by an encoder such as BERT.

        They have length 1 unless the model says otherwise; of `dimensions` numbers the first are kept.
        `prompt_name` is a prompt of the model ("query"), which goes in front of the texts; None: its default.
        InvalidRequest where the model generates text instead, ContextLengthExceeded where a text is too long
        for it, unless `truncate` cuts it with a warning.
        """
        vectors = self._run(self._vectors(several(texts), dimensions, prompt_name, truncate=truncate))
        return pooled(vectors, self._size(dimensions))

    def embed_tokens(self, texts: str | Sequence[PromptLike]) -> list[Array]:
        """Of each text the vectors [tokens, size] of its tokens, by an encoder loaded with
        `pooling="none"`."""
        return self._run(self._vectors(several(texts), None))

    def entities(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str] | None = None,
        **options: Unpack[EntityKeywords],
    ) -> list[list[Entity]]:
        """Of each text the entities of these labels, in order, by a tagger such as the bundled `tagger`, a
        GLiNER checkpoint, or a model that classifies tokens (then `labels` are some of its own, None: all).

        Labels are words of your own ("phone number"). Keywords are the fields of `Search`: `threshold` (0.5),
        `flat_ner`, `multi_label`, `truncate`, `window`, `stride`, `aggregation`. A text that is longer than
        the model reads at once raises ContextLengthExceeded unless `truncate=True` cuts it, or `stride`
        (tokens that two windows share) or `window` (tokens of one, at most) have it read in windows.
        InvalidRequest for arguments that mean nothing or a model that finds no entities.
        """
        return self._run(self._entities(texts, labels, options))

    def classify(
        self, texts: str | Sequence[str | TextPair], *, truncate: bool = False, raw: bool = False
    ) -> list[Classification]:
        """Of each text, or `TextPair` of two texts, the scores of the labels, by a sequence classifier, a
        cross-encoder or a reward model; one text gives a list of one.

        Scores are probabilities as the checkpoint says (softmax, or sigmoid of each label); `raw` ones are
        logits. InvalidRequest where the model classifies no texts, ContextLengthExceeded for a text that is
        too long unless it may be cut (`truncate`).
        """
        return self._run(self._classify(texts, truncate, raw))

    def sparse(self, texts: str | Sequence[str], *, truncate: bool = False) -> list[SparseVector]:
        """Of each text the weights of vocabulary entries, by a SPLADE model. Errors as `classify`."""
        return self._run(self._sparse(texts, truncate))

    def token_vectors(
        self, texts: str | Sequence[str], *, role: Role = "document", truncate: bool = False
    ) -> list[Array]:
        """Of each text the vectors [tokens, size] of its tokens, by a model for late interaction (ColBERT) or
        one loaded with `pooling="none"`. `role` "query" or "document" says how the former reads them. Errors
        as `classify`."""
        return self._run(self._token_vectors(texts, role, truncate))

    def redact(self, texts: str | Sequence[str], **keywords: Unpack[RedactKeywords]) -> list[Redacted]:
        """Each text without personal data: what `headrace.redact` finds by patterns and, by a model for
        entities, names and places too. Keywords are those of `headrace.redact`; all texts share one vault.
        """
        return self._run(self._redact(texts, keywords))

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

    def fit_classifier(self, examples: Examples, *, strength: float = STRENGTH) -> TextClassifier:
        """A classifier of texts from a few examples of each label: pairs (text, label), or texts by label.

        The model must be an embedder. Training takes seconds and gives the same numbers each time; a larger
        `strength` keeps the weights smaller.
        """
        fitted = self._run(self._fitted(examples, strength))
        return TextClassifier(fitted, self._encoder, self._embed_units)

    def load_classifier(self, folder: str | Path) -> TextClassifier:
        """What `TextClassifier.save` wrote, made with this model."""
        return TextClassifier(self._loaded(folder), self._encoder, self._embed_units)

    def _embed_units(self, texts: Sequence[str]) -> Array:
        return self._run(self._unit_vectors(texts))


class AsyncTasks(TaskWork):
    """Methods of `AsyncLLM`."""

    async def embed(
        self,
        texts: str | Sequence[PromptLike],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
    ) -> Array:
        """See `LLM.embed`."""
        vectors = await self._vectors(several(texts), dimensions, prompt_name, truncate=truncate)
        return pooled(vectors, self._size(dimensions))

    async def embed_tokens(self, texts: str | Sequence[PromptLike]) -> list[Array]:
        """See `LLM.embed_tokens`."""
        return await self._vectors(several(texts), None)

    async def entities(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str] | None = None,
        **options: Unpack[EntityKeywords],
    ) -> list[list[Entity]]:
        """See `LLM.entities`."""
        return await self._entities(texts, labels, options)

    async def classify(
        self, texts: str | Sequence[str | TextPair], *, truncate: bool = False, raw: bool = False
    ) -> list[Classification]:
        """See `LLM.classify`."""
        return await self._classify(texts, truncate, raw)

    async def sparse(self, texts: str | Sequence[str], *, truncate: bool = False) -> list[SparseVector]:
        """See `LLM.sparse`."""
        return await self._sparse(texts, truncate)

    async def token_vectors(
        self, texts: str | Sequence[str], *, role: Role = "document", truncate: bool = False
    ) -> list[Array]:
        """See `LLM.token_vectors`."""
        return await self._token_vectors(texts, role, truncate)

    async def redact(self, texts: str | Sequence[str], **keywords: Unpack[RedactKeywords]) -> list[Redacted]:
        """See `LLM.redact`."""
        return await self._redact(texts, keywords)

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

    async def fit_classifier(self, examples: Examples, *, strength: float = STRENGTH) -> AsyncTextClassifier:
        """See `LLM.fit_classifier`."""
        return AsyncTextClassifier(await self._fitted(examples, strength), self._encoder, self._unit_vectors)

    def load_classifier(self, folder: str | Path) -> AsyncTextClassifier:
        """See `LLM.load_classifier`."""
        return AsyncTextClassifier(self._loaded(folder), self._encoder, self._unit_vectors)
