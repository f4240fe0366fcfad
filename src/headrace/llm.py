"""Models in Python: load one, generate, stream, chat, embed, extract; blocking or with asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

from msgspec.structs import replace

from headrace.config.settings import default_cache_dir
from headrace.engine.client import LoadedModel
from headrace.errors import EngineStopped, UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.completion import ChunkReader, Completion, CompletionChunk, last_async, last_of
from headrace.inference.explanation import prediction
from headrace.inference.handler import Handler, OpenStream, open_stream
from headrace.inference.journal_handler import JournalHandler, ProgramJournal
from headrace.inference.keyword_types import ChatKeywords, GenerateKeywords, ModelKeywords
from headrace.inference.keywords import (
    Messages,
    PromptLike,
    at_a_time,
    chat_request,
    check_known,
    completion_request,
    new_call,
)
from headrace.inference.local_handler import LocalHandler
from headrace.inference.loop_thread import BlockingStream, LoopThread
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import GenerationRequest
from headrace.loading.loader import Progress, load_model
from headrace.loading.options import EngineOptions
from headrace.tasks.guards.handler import GuardHandler
from headrace.tasks.guards.settings import read_guards
from headrace.tasks.task_methods import AsyncTasks, BlockingTasks
from headrace.telemetry.explain_node import ExplainNode

T = TypeVar("T")


class _Model:
    """A loaded model with its handler, closed with the last reference to it."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        progress: Progress | None = None,
        guards: Mapping[str, object] | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        journal: str | Path | None = None,
        **options: Unpack[ModelKeywords],
    ) -> None:
        name = None if model is None else str(model)
        if options.get("slo_policy") == "degrade":
            raise UsageError(
                "slo_policy degrade needs a server, which has other models: refuse or serve",
                param="slo_policy",
            )
        given = _engine_options(type(self).__name__, options)
        kept = None if journal is None else ProgramJournal(_folder(journal))
        try:
            loaded = load_model(name, given, progress=progress)
            self._source = OneModel(loaded, _adapters(loaded, adapters or {}))
        except BaseException:
            if kept is not None:
                kept.close(has_ended=False)
            raise
        self._threads = ModelThreads(1)
        self._local = local = LocalHandler(self._source, self._threads)
        self.runner = ModelRunner(local, self._source, self._threads)
        inner = local if kept is None else JournalHandler(local, kept)
        self.handler: Handler = GuardHandler(inner, read_guards(guards), self.runner)
        self._thread = LoopThread()
        # The engine's thread would keep the model alive: stop it with the last reference, or at exit.
        self._closer = weakref.finalize(self, _close, loaded, local, self._thread, self._threads, kept)

    @property
    def model(self) -> LoadedModel:
        """The loaded model: its tokenizer, chat template, engine, memory plan."""
        return self._source.model

    @model.setter
    def model(self, model: LoadedModel) -> None:
        self._source.model = model

    def _guarded(self, given: Mapping[str, Any]) -> tuple[Handler, Mapping[str, Any]]:
        """The handler of a call with these keywords, and the keywords without tables of guards, which are
        put around the model's own."""
        tables = given.get("guard")
        if not isinstance(tables, Mapping):
            return self.handler, given
        read = read_guards(cast("Mapping[str, object]", tables))
        guards = {name: replace(one, always=True) for name, one in read.items()}
        rest = {name: value for name, value in given.items() if name != "guard"}
        return GuardHandler(self.handler, guards, self.runner), rest

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self._closer()

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise EngineStopped("the model was closed: load it again")


def _adapters(model: LoadedModel, paths: Mapping[str, str | Path]) -> dict[str, str]:
    """Digests of a model's adapters by name; where one cannot be loaded the model is closed."""
    try:
        return {
            name: model.engine.load_adapter(Path(path).expanduser()).digest for name, path in paths.items()
        }
    except BaseException:
        model.close()
        raise


def _close(
    model: LoadedModel,
    handler: LocalHandler,
    thread: LoopThread,
    threads: ModelThreads,
    journal: ProgramJournal | None,
) -> None:
    handler.close()
    model.close()
    thread.close()
    threads.close()
    if journal is not None:
        journal.close()


def _folder(journal: str | Path) -> Path:
    if not str(journal):
        raise UsageError("journal is '', which names no folder", param="journal")
    return Path(journal).expanduser()


def _engine_options(where: str, options: Mapping[str, Any]) -> EngineOptions:
    """InvalidRequest for an unknown option."""
    check_known(where, options, frozenset(EngineOptions.__struct_fields__))
    values: dict[str, Any] = {"cache_dir": default_cache_dir(), **options}
    if isinstance(values["cache_dir"], str):
        values["cache_dir"] = Path(values["cache_dir"]).expanduser()
    return EngineOptions(**values)


def _asked(prompt: PromptLike | Messages, given: Mapping[str, Any]) -> GenerationRequest:
    """The request of a prompt, or of a conversation: messages are mappings."""
    if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
        return chat_request(cast("Messages", prompt), given)
    return completion_request(cast("PromptLike", prompt), given)


class LLM(_Model, BlockingTasks):
    """A loaded model.

    `model` is a folder, a file, a hub name or the name of a bundled model; None loads the default. Options
    are those of `EngineOptions` (quantization, kv_cache_dtype, max_model_len, threads, max_num_seqs, ...);
    `adapters` are LoRA adapters by name, folders of PEFT or GGUF files; a call with `adapter` uses one;
    `guards` are tables as those of `[guards]` in headrace.toml, by name; `guard` of a call names some of
    those that are not `always` on, or brings tables of its own;
    with `journal`, a folder, a program that was killed and is started again gets what it had computed at
    once, and its calls go on where they were;
    packed weights are kept in the user's cache folder unless `cache_dir` says otherwise (None: nowhere).
    Sampling parameters are keywords of each call (those of `SamplingParams`); what is not given comes from
    the model's generation_config.json. One more keyword may say what the output must match: `json_schema` (a
    dict, JSON text or a pydantic class), `json_object=True`, `regex`, `choice` (texts), `grammar` (Lark or
    GBNF), `sql` (lists of columns by table: one SELECT statement over these), or a `constraint`. Objects of
    schemas that list properties have no others, unless the schema says so or `disable_additional_properties`
    is False. With `finish_within_max_tokens` such an output ends within its tokens instead of being cut off.
    An unknown keyword raises InvalidRequest.

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
        handler, given = self._guarded(sampling)
        requests = [completion_request(prompt, given) for prompt in prompts]
        most = at_a_time(requests, self.model)
        running: deque[BlockingStream[CompletionChunk]] = deque()
        done: list[Completion] = []
        try:
            for request in requests:
                if len(running) >= most:
                    done.append(last_of(running.popleft()))
                running.append(self._stream(request, handler, new_call(given)))
            while running:
                done.append(last_of(running.popleft()))
        finally:
            for stream in running:
                stream.close()
        return done

    def stream(self, prompt: PromptLike, **sampling: Unpack[GenerateKeywords]) -> Iterator[CompletionChunk]:
        """Like generate, chunk by chunk. Leaving the loop early cancels the request."""
        handler, given = self._guarded(sampling)
        return self._stream(completion_request(prompt, given), handler, new_call(given))

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
        handler, given = self._guarded(sampling)
        return self._stream(chat_request(messages, given), handler, new_call(given))

    def explain(self, prompt: PromptLike | Messages, **sampling: Unpack[ChatKeywords]) -> ExplainNode:
        """What generating from a prompt, or answering a conversation, would do and take: nothing is computed.
        Without `max_tokens` an answer as long as the model's so far is assumed."""
        return self._run(prediction(self._local, _asked(prompt, sampling), new_call(sampling)))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _stream(
        self, request: GenerationRequest, handler: Handler, call: CallContext
    ) -> BlockingStream[CompletionChunk]:
        return BlockingStream(
            self._thread,
            lambda: open_stream(handler, request, call),
            lambda stream: ChunkReader(stream.prepared, call),
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
        handler, given = self._guarded(sampling)
        requests = [completion_request(prompt, given) for prompt in prompts]
        places = asyncio.Semaphore(at_a_time(requests, self.model))

        async def generate(request: GenerationRequest) -> Completion:
            async with places:
                return await last_async(self._stream(request, handler, new_call(given)))

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
        handler, given = self._guarded(sampling)
        return self._stream(completion_request(prompt, given), handler, new_call(given))

    async def chat(self, messages: Messages, **sampling: Unpack[ChatKeywords]) -> Completion:
        """See `LLM.chat`."""
        return await last_async(self.stream_chat(messages, **sampling))

    def stream_chat(
        self, messages: Messages, **sampling: Unpack[ChatKeywords]
    ) -> AsyncIterator[CompletionChunk]:
        """See `LLM.stream_chat`."""
        handler, given = self._guarded(sampling)
        return self._stream(chat_request(messages, given), handler, new_call(given))

    async def explain(self, prompt: PromptLike | Messages, **sampling: Unpack[ChatKeywords]) -> ExplainNode:
        """See `LLM.explain`."""
        self._check_open()
        return await prediction(self._local, _asked(prompt, sampling), new_call(sampling))

    async def _stream(
        self, request: GenerationRequest, handler: Handler, call: CallContext
    ) -> AsyncIterator[CompletionChunk]:
        self._check_open()
        stream: OpenStream = await open_stream(handler, request, call)
        reader = ChunkReader(stream.prepared, call)
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
