"""Models in Python: load one, generate, stream, chat, embed, extract; blocking or with asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from headrace.config.settings import default_cache_dir
from headrace.engine.client import LoadedModel
from headrace.errors import EngineStopped
from headrace.inference.completion import ChunkReader, Completion, CompletionChunk, last_async, last_of
from headrace.inference.handler import Handler, OpenStream, open_stream
from headrace.inference.keyword_types import ChatKeywords, GenerateKeywords, ModelKeywords
from headrace.inference.keywords import (
    Messages,
    PromptLike,
    at_a_time,
    chat_request,
    check_known,
    completion_request,
    embedding_request,
    new_call,
)
from headrace.inference.local_handler import LocalHandler
from headrace.inference.loop_thread import BlockingStream, LoopThread
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import GenerationRequest, TextPair
from headrace.loading.loader import Progress, load_model
from headrace.loading.options import EngineOptions
from headrace.ops.value import Array
from headrace.tasks import late_interaction
from headrace.tasks.classify import Classification, classify
from headrace.tasks.embed import pooled
from headrace.tasks.entities import Entity, extract_entities
from headrace.tasks.entity_finders.search import EntityKeywords
from headrace.tasks.guards.handler import GuardHandler
from headrace.tasks.guards.settings import read_guards
from headrace.tasks.late_interaction import Role
from headrace.tasks.pii.keywords import RedactKeywords, redactor_of
from headrace.tasks.pii.model_entities import redact_texts
from headrace.tasks.pii.redaction import Redacted, restore
from headrace.tasks.sparse import SparseVector, sparse
from headrace.tasks.task_methods import AsyncTasks, BlockingTasks, told_call

T = TypeVar("T")


class _Model:
    """A loaded model with its handler, closed with the last reference to it."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        progress: Progress | None = None,
        guards: Mapping[str, object] | None = None,
        **options: Unpack[ModelKeywords],
    ) -> None:
        name = None if model is None else str(model)
        loaded = load_model(name, _engine_options(type(self).__name__, options), progress=progress)
        self._source = OneModel(loaded)
        self._threads = ModelThreads(1)
        local = LocalHandler(self._source, self._threads)
        self.runner = ModelRunner(local, self._source, self._threads)
        self.handler: Handler = GuardHandler(local, read_guards(guards), self.runner) if guards else local
        self._thread = LoopThread()
        # The engine's thread would keep the model alive: stop it with the last reference, or at exit.
        self._closer = weakref.finalize(self, _close, loaded, local, self._thread, self._threads)

    @property
    def model(self) -> LoadedModel:
        """The loaded model: its tokenizer, chat template, engine, memory plan."""
        return self._source.model

    @model.setter
    def model(self, model: LoadedModel) -> None:
        self._source.model = model

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self._closer()

    async def _vectors(
        self, texts: Sequence[PromptLike], dimensions: int | None, prompt_name: str | None = None
    ) -> list[Array]:
        self._check_open()
        with told_call() as call:
            return await self.runner.rows(embedding_request(texts, dimensions, prompt_name), call)

    async def _classify(
        self, texts: str | Sequence[str | TextPair], truncate: bool, raw: bool
    ) -> list[Classification]:
        self._check_open()
        inputs = [texts] if isinstance(texts, str) else list(texts)
        with told_call() as call:
            return await classify(self.runner, None, inputs, call, truncate=truncate, raw=raw)

    async def _sparse(self, texts: str | Sequence[str], truncate: bool) -> list[SparseVector]:
        self._check_open()
        inputs = [texts] if isinstance(texts, str) else list(texts)
        with told_call() as call:
            return await sparse(self.runner, None, inputs, call, truncate=truncate)

    async def _token_vectors(self, texts: str | Sequence[str], role: Role, truncate: bool) -> list[Array]:
        self._check_open()
        inputs = [texts] if isinstance(texts, str) else list(texts)
        with told_call() as call:
            return await late_interaction.token_vectors(
                self.runner, None, inputs, call, role=role, truncate=truncate
            )

    async def _redact(self, texts: str | Sequence[str], keywords: RedactKeywords) -> list[Redacted]:
        """By patterns, and by the model where it finds entities."""
        self._check_open()
        redactor = redactor_of(keywords)
        several = [texts] if isinstance(texts, str) else list(texts)
        if not {"entities", "token_classify"} & set(self.model.tasks):
            return [redactor.redact(text) for text in several]
        wanted = keywords.get("entities")
        with told_call() as call:
            return await redact_texts(redactor, several, self.runner, None, call, wanted)

    def restore(self, text: str, vault: Mapping[str, str]) -> str:
        """The text with the placeholders of `redact` replaced by what they stand for."""
        return restore(text, vault)

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise EngineStopped("the model was closed: load it again")

    def _size(self, dimensions: int | None) -> int:
        return self.model.engine.limits.embedding_size if dimensions is None else dimensions

    async def _entities(
        self, texts: str | Sequence[str], labels: Sequence[str] | None, options: EntityKeywords
    ) -> list[list[Entity]]:
        self._check_open()
        several = [texts] if isinstance(texts, str) else list(texts)
        with told_call() as call:
            return await extract_entities(self.runner, None, several, labels, call, **options)


def _close(model: LoadedModel, handler: LocalHandler, thread: LoopThread, threads: ModelThreads) -> None:
    handler.close()
    model.close()
    thread.close()
    threads.close()


def _engine_options(where: str, options: Mapping[str, Any]) -> EngineOptions:
    """InvalidRequest for an unknown option."""
    check_known(where, options, frozenset(EngineOptions.__struct_fields__))
    values: dict[str, Any] = {"cache_dir": default_cache_dir(), **options}
    if isinstance(values["cache_dir"], str):
        values["cache_dir"] = Path(values["cache_dir"]).expanduser()
    return EngineOptions(**values)


class LLM(_Model, BlockingTasks):
    """A loaded model.

    `model` is a folder, a file, a hub name or the name of a bundled model; None loads the default. Options
    are those of `EngineOptions` (quantization, kv_cache_dtype, max_model_len, threads, max_num_seqs, ...);
    `guards` are tables as those of `[guards]` in headrace.toml, by name;
    packed weights are kept in the user's cache folder unless `cache_dir` says otherwise (None: nowhere).
    Sampling parameters are keywords of each call (those of `SamplingParams`); what is not given comes from
    the model's generation_config.json. One more keyword may say what the output must match: `json_schema` (a
    dict, JSON text or a pydantic class), `json_object=True`, `regex`, `choice` (texts), `grammar` (Lark or
    GBNF), `sql` (lists of columns by table: one SELECT statement over these), or a `constraint`. Objects of
    schemas that list properties have no others, unless the schema says so or `disable_additional_properties`
    is False. An unknown keyword raises InvalidRequest.

    With `n` choices, `vote` returns the majority answer ("last_number", "boxed", "text", a mapping such as
    {"extract": "regex", "pattern": "#### (.*)"}, or a function from a text to its answer or None) and stops
    choices that can no longer change the outcome; `best_by` returns the best ("mean_logprob", "sum_logprob",
    or a function from a text to its score). The winner is the first choice, `selection` has the votes.
    `max_total_tokens` bounds the tokens of all choices together; `deadline_s` the time, after which the best
    so far is returned where one of these three is given, and DeadlineExceeded is raised otherwise. Functions
    run on the engine's thread.

        with LLM() as llm:
            for chunk in llm.stream("Once upon a time", max_tokens=40):
                print(chunk.text, end="")
    """

    def generate(self, prompt: PromptLike, **sampling: Unpack[GenerateKeywords]) -> Completion:
        """Continue a text (or token ids). Raises a typed HeadraceError where the request cannot be run."""
        return last_of(self.stream(prompt, **sampling))

    def generate_batch(
        self, prompts: Sequence[PromptLike], **sampling: Unpack[GenerateKeywords]
    ) -> list[Completion]:
        """Continue any number of prompts concurrently; answers come in the order of the prompts.

        If one fails its error is raised and the others are cancelled.
        """
        requests = [completion_request(prompt, sampling) for prompt in prompts]
        most = at_a_time(requests, self.model)
        running: deque[BlockingStream[CompletionChunk]] = deque()
        done: list[Completion] = []
        try:
            for request in requests:
                if len(running) >= most:
                    done.append(last_of(running.popleft()))
                running.append(self._stream(request))
            while running:
                done.append(last_of(running.popleft()))
        finally:
            for stream in running:
                stream.close()
        return done

    def stream(self, prompt: PromptLike, **sampling: Unpack[GenerateKeywords]) -> Iterator[CompletionChunk]:
        """Like generate, chunk by chunk. Leaving the loop early cancels the request."""
        return self._stream(completion_request(prompt, sampling))

    def chat(self, messages: Messages, **sampling: Unpack[ChatKeywords]) -> Completion:
        """Answer a conversation: dicts with `role` and `content`, rendered by the model's chat template.

        `tools`, `tool_choice` and `parallel_tool_calls` are those of OpenAI's chat completions, `tool_format`
        names the syntax of calls where the template does not tell it, `template_variables` (a dict, such as
        {"enable_thinking": False}) goes to the template, `reasoning_effort` is a level such as "low". Of a
        model that reasons, `thinking_token_budget` and `min_thinking_tokens` bound the reasoning: where it
        would end too early, `thinking_continuation` ("Wait") takes the place of its end.
        """
        return last_of(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: Messages, **sampling: Unpack[ChatKeywords]) -> Iterator[CompletionChunk]:
        """Like chat, chunk by chunk."""
        return self._stream(chat_request(messages, sampling))

    def embed(
        self,
        texts: str | Sequence[PromptLike],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> Array:
        """Vectors [texts, dimensions] of texts (or token ids), float32, by an encoder such as BERT.

        They have length 1 unless the model says otherwise; of `dimensions` numbers the first are kept.
        `prompt_name` is a prompt of the model ("query"), which goes in front of the texts; None: its default.
        InvalidRequest where the model generates text instead, ContextLengthExceeded where a text is too long
        for it: texts are never cut.
        """
        vectors = self._thread.run(self._vectors(_several(texts), dimensions, prompt_name))
        return pooled(vectors, self._size(dimensions))

    def embed_tokens(self, texts: str | Sequence[PromptLike]) -> list[Array]:
        """Of each text the vectors [tokens, size] of its tokens, by an encoder loaded with
        `pooling="none"`."""
        return self._thread.run(self._vectors(_several(texts), None))

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
        return self._thread.run(self._entities(texts, labels, options))

    def classify(
        self, texts: str | Sequence[str | TextPair], *, truncate: bool = False, raw: bool = False
    ) -> list[Classification]:
        """Of each text, or `TextPair` of two texts, the scores of the labels, by a sequence classifier, a
        cross-encoder or a reward model; one text gives a list of one.

        Scores are probabilities as the checkpoint says (softmax, or sigmoid of each label); `raw` ones are
        logits. InvalidRequest where the model classifies no texts, ContextLengthExceeded for a text that is
        too long unless it may be cut (`truncate`).
        """
        return self._thread.run(self._classify(texts, truncate, raw))

    def sparse(self, texts: str | Sequence[str], *, truncate: bool = False) -> list[SparseVector]:
        """Of each text the weights of vocabulary entries, by a SPLADE model. Errors as `classify`."""
        return self._thread.run(self._sparse(texts, truncate))

    def token_vectors(
        self, texts: str | Sequence[str], *, role: Role = "document", truncate: bool = False
    ) -> list[Array]:
        """Of each text the vectors [tokens, size] of its tokens, by a model for late interaction (ColBERT) or
        one loaded with `pooling="none"`. `role` "query" or "document" says how the former reads them. Errors
        as `classify`."""
        return self._thread.run(self._token_vectors(texts, role, truncate))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def redact(self, texts: str | Sequence[str], **keywords: Unpack[RedactKeywords]) -> list[Redacted]:
        """Each text without personal data: what `headrace.redact` finds by patterns and, by a model for
        entities, names and places too. Keywords are those of `headrace.redact`; all texts share one vault.
        """
        return self._thread.run(self._redact(texts, keywords))

    def _stream(self, request: GenerationRequest) -> BlockingStream[CompletionChunk]:
        handler, call = self.handler, new_call()
        return BlockingStream(
            self._thread,
            lambda: open_stream(handler, request, call),
            lambda stream: ChunkReader(stream.prepared, call.warnings),
            self,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLLM(_Model, AsyncTasks):
    """`LLM` for asyncio: the same methods as coroutines, and streams as asynchronous iterators.

    Loading blocks. Use one object from one event loop at a time.

        async with AsyncLLM() as llm:
            async for chunk in llm.stream("Once upon a time", max_tokens=40):
                print(chunk.text, end="")
    """

    async def generate(self, prompt: PromptLike, **sampling: Unpack[GenerateKeywords]) -> Completion:
        """See `LLM.generate`."""
        return await last_async(self.stream(prompt, **sampling))

    async def generate_batch(
        self, prompts: Sequence[PromptLike], **sampling: Unpack[GenerateKeywords]
    ) -> list[Completion]:
        """See `LLM.generate_batch`."""
        requests = [completion_request(prompt, sampling) for prompt in prompts]
        places = asyncio.Semaphore(at_a_time(requests, self.model))

        async def generate(request: GenerationRequest) -> Completion:
            async with places:
                return await last_async(self._stream(request))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(generate(request)) for request in requests]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def stream(
        self, prompt: PromptLike, **sampling: Unpack[GenerateKeywords]
    ) -> AsyncIterator[CompletionChunk]:
        """See `LLM.stream`; closing the iterator cancels the request."""
        return self._stream(completion_request(prompt, sampling))

    async def chat(self, messages: Messages, **sampling: Unpack[ChatKeywords]) -> Completion:
        """See `LLM.chat`."""
        return await last_async(self.stream_chat(messages, **sampling))

    def stream_chat(
        self, messages: Messages, **sampling: Unpack[ChatKeywords]
    ) -> AsyncIterator[CompletionChunk]:
        """See `LLM.stream_chat`."""
        return self._stream(chat_request(messages, sampling))

    async def embed(
        self,
        texts: str | Sequence[PromptLike],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> Array:
        """See `LLM.embed`."""
        vectors = await self._vectors(_several(texts), dimensions, prompt_name)
        return pooled(vectors, self._size(dimensions))

    async def embed_tokens(self, texts: str | Sequence[PromptLike]) -> list[Array]:
        """See `LLM.embed_tokens`."""
        return await self._vectors(_several(texts), None)

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

    async def _stream(self, request: GenerationRequest) -> AsyncIterator[CompletionChunk]:
        self._check_open()
        call = new_call()
        stream: OpenStream = await open_stream(self.handler, request, call)
        reader = ChunkReader(stream.prepared, call.warnings)
        async with aclosing(stream):
            async for batch in stream:
                for chunk in reader.read(batch):
                    yield chunk
        yield reader.last()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _several(texts: str | Sequence[PromptLike]) -> list[PromptLike]:
    return [texts] if isinstance(texts, str) else list(texts)
