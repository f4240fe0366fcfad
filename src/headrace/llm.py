"""The Python front door: load a model, generate, stream and chat, blocking or async."""

from __future__ import annotations

import asyncio
import operator
import queue
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex, cast

from headrace.chat.messages import messages_from_openai
from headrace.chat.prompt import CONTINUATION, ChatPrompt, prepare
from headrace.chat.templates.chat_template import missing_template
from headrace.chat.tools import tool_use_from_openai
from headrace.completion import Completion, CompletionChunk, CompletionCollector
from headrace.config.settings import default_cache_dir
from headrace.engine.client import LoadedModel
from headrace.engine.request import (
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    RequestHandle,
)
from headrace.engine.scaling.options import scaling_of
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, choice_constraint, schema_constraint
from headrace.loading.loader import Progress, load_model
from headrace.loading.options import EngineOptions
from headrace.ops.value import Array
from headrace.sampling.params import SamplingParams, with_defaults
from headrace.sampling.reasoning_budget import ReasoningBudget
from headrace.tasks import embed as embeddings
from headrace.tasks.entities import THRESHOLD, Entity, EntityExtractor
from headrace.tokenization.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, object]]

_CHAT_OPTIONS = ("tools", "tool_choice", "parallel_tool_calls", "tool_format", "template_variables")
_THINKING = ("thinking_token_budget", "min_thinking_tokens", "thinking_continuation")
_SCALING = ("vote", "best_by", "max_total_tokens")
_PARAMS = frozenset(SamplingParams.__struct_fields__)
_LISTS = (
    *("stop", "stop_token_ids", "allowed_token_ids"),
    *("bad_words", "banned_strings", "dry_sequence_breakers"),
)
_CONSTRAINTS: Mapping[str, Callable[[Any], Constraint]] = {
    "json_schema": lambda schema: schema_constraint(schema, param="json_schema"),
    "json_object": lambda _: Constraint("json_object", param="json_object"),
    "regex": lambda pattern: Constraint("regex", pattern, param="regex"),
    "choice": lambda texts: choice_constraint(texts, param="choice"),
    "grammar": lambda text: Constraint("ebnf" if "::=" in str(text) else "lark", text, param="grammar"),
    "constraint": lambda constraint: constraint,
}


class LLM:
    """A loaded model.

    `model` is a folder, a hub name or a shipped model's name; None loads the shipped default. Options are
    those of `EngineOptions` (quantization, kv_cache_dtype, max_model_len, threads, max_num_seqs, ...); packed
    weights are kept in the user's cache folder unless `cache_dir` says otherwise (None: nowhere). Sampling
    parameters are keywords of each call (those of `SamplingParams`); what is not given comes from the model's
    generation_config.json. One more keyword may say what the output must match: `json_schema` (a dict, JSON
    text or a pydantic class), `json_object=True`, `regex`, `choice` (texts), `grammar` (Lark or GBNF), or a
    `constraint`. An unknown keyword raises.

    With `n` choices, `vote` gives out the answer of most ("last_number", "boxed", "text", a mapping such as
    {"extract": "regex", "pattern": "#### (.*)"}, or a function from a text to its answer or None) and stops
    those that cannot matter any more; `best_by` the best ("mean_logprob", "sum_logprob", or a function from a
    text to its score). The winner is the first choice, `verdict` has the votes. `max_total_tokens` bounds the
    tokens of all choices together; `deadline_s` the time, after which the best so far comes back where one of
    these three is given, and DeadlineExceeded is raised where none is. Functions run on the engine's thread.

        with LLM() as llm:
            for piece in llm.stream("Once upon a time", max_tokens=40):
                print(piece.text, end="")
    """

    def __init__(
        self, model: str | Path | None = None, *, progress: Progress | None = None, **options: Any
    ) -> None:
        _known("LLM", options, frozenset(EngineOptions.__struct_fields__))
        options.setdefault("cache_dir", default_cache_dir())
        if isinstance(options.get("cache_dir"), str):
            options["cache_dir"] = Path(options["cache_dir"]).expanduser()
        name = None if model is None else str(model)
        self.model: LoadedModel = load_model(name, EngineOptions(**options), progress=progress)
        self._finder: EntityExtractor | None = None
        # The engine's thread would keep the model alive: stop it with the last reference, or at exit.
        self._closer = weakref.finalize(self, self.model.close)

    def generate(self, prompt: Prompt, **sampling: Any) -> Completion:
        """Continue a text (or token ids). Raises a typed HeadraceError where the request cannot be run."""
        return _last(self.stream(prompt, **sampling))

    def generate_batch(self, prompts: Sequence[Prompt], **sampling: Any) -> list[Completion]:
        """Continue any number of prompts at once; answers come in the order of the prompts.

        Where one cannot be run its error is raised and the others are cancelled.
        """
        requests = [self._request(prompt, sampling) for prompt in prompts]
        streams: deque[_Stream] = deque()
        done: list[Completion] = []
        try:
            for request in requests:
                if (len(streams) + 1) * request.params.n > self.model.engine.limits.max_choices:
                    done.append(_last(streams.popleft()))
                streams.append(_Stream(self, request))
            while streams:
                done.append(_last(streams.popleft()))
        finally:
            for stream in streams:
                stream.close()
        return done

    def stream(self, prompt: Prompt, **sampling: Any) -> Iterator[CompletionChunk]:
        """Like generate, piece by piece. Leaving the loop early cancels the request."""
        return _Stream(self, self._request(prompt, sampling))

    def chat(self, messages: Messages, **sampling: Any) -> Completion:
        """Answer a conversation: dicts with `role` and `content`, rendered by the model's chat template.

        `tools`, `tool_choice` and `parallel_tool_calls` are those of OpenAI's chat completions, `tool_format`
        names the syntax of calls where the template does not tell it, `template_variables` (a dict, such as
        {"enable_thinking": False}) goes to the template. Of a model that reasons, `thinking_token_budget` and
        `min_thinking_tokens` bound the reasoning: where it would end too early, `thinking_continuation`
        ("Wait") stands in place of its end.
        """
        return _last(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: Messages, **sampling: Any) -> Iterator[CompletionChunk]:
        """Like chat, piece by piece."""
        return _Stream(self, *self._chat_request(messages, sampling))

    async def agenerate(self, prompt: Prompt, **sampling: Any) -> Completion:
        """`generate` for asyncio."""
        return await _alast(self.astream(prompt, **sampling))

    def astream(self, prompt: Prompt, **sampling: Any) -> AsyncIterator[CompletionChunk]:
        """`stream` for asyncio; closing the iterator cancels the request."""
        return _astream(self, self._request(prompt, sampling))

    async def achat(self, messages: Messages, **sampling: Any) -> Completion:
        """`chat` for asyncio."""
        return await _alast(self.astream_chat(messages, **sampling))

    def astream_chat(self, messages: Messages, **sampling: Any) -> AsyncIterator[CompletionChunk]:
        """`stream_chat` for asyncio."""
        return _astream(self, *self._chat_request(messages, sampling))

    def embed(self, texts: str | Sequence[Prompt], *, dimensions: int | None = None) -> Array:
        """Vectors [texts, dimensions] of texts (or token ids), float32, by an encoder such as BERT.

        They have length 1 where the model says so or says nothing; of `dimensions` numbers the first are
        kept. InvalidRequest where the model generates text instead, ContextLengthExceeded where a text is
        too long for it: texts are never cut.
        """
        return embeddings.embed(self.model, self._text_ids(texts), dimensions)

    def token_vectors(self, texts: str | Sequence[Prompt]) -> list[Array]:
        """Of each text the vectors [tokens, size] of its tokens, by an encoder loaded with
        `pooling="none"`."""
        return list(embeddings.token_vectors(self.model, self._text_ids(texts)))

    def entities(
        self, texts: str | Sequence[str], labels: Sequence[str], *, threshold: float = THRESHOLD
    ) -> list[list[Entity]]:
        """Of each text the entities of these labels, by a tagger as `train/tagger.py` makes one.

        Labels are words of your own ("phone number"); `threshold` in (0, 1) is the least score.
        InvalidRequest for labels that mean nothing, UnsupportedModel where the model is no tagger,
        ContextLengthExceeded where a text with the labels is too long: texts are never cut.
        """
        if self._finder is None:
            self._finder = EntityExtractor(self.model)
        return list(self._finder.find([texts] if isinstance(texts, str) else texts, labels, threshold))

    async def aembed(self, texts: str | Sequence[Prompt], *, dimensions: int | None = None) -> Array:
        """`embed` for asyncio."""
        return await asyncio.to_thread(self.embed, texts, dimensions=dimensions)

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, prompt: Prompt, sampling: dict[str, Any]) -> EngineRequest:
        if isinstance(prompt, str):
            ids, is_continuation = tuple(self.model.tokenizer.encode_prompt(prompt)), prompt != ""
        else:
            ids, is_continuation = _token_ids(prompt), True
        sampling, constraint = _constraint(sampling)
        sampling, more = _together(sampling)
        params = self._params(sampling)
        return EngineRequest(
            prompt=ids, params=params, is_continuation=is_continuation, constraint=constraint, **more
        )

    def _text_ids(self, texts: str | Sequence[Prompt]) -> list[tuple[int, ...]]:
        several = [texts] if isinstance(texts, str) else list(texts)
        encode = self.model.tokenizer.encode_prompt
        return [tuple(encode(text)) if isinstance(text, str) else _token_ids(text) for text in several]

    def _chat_request(self, messages: Messages, options: dict[str, Any]) -> tuple[EngineRequest, ChatPrompt]:
        template = self.model.template
        if template is None:
            raise missing_template(self.model.name)
        given = {name: options.get(name) for name in (*_CHAT_OPTIONS, *_THINKING)}
        sampling = {name: value for name, value in options.items() if name not in given}
        sampling, wanted = _constraint(sampling)
        conversation = prepare(
            template,
            messages_from_openai(list(messages)),
            use=tool_use_from_openai(given["tools"], given["tool_choice"], given["parallel_tool_calls"]),
            family=given["tool_format"],
            variables=given["template_variables"],
        )
        sampling, more = _together(sampling, conversation)
        tokenizer = self.model.tokenizer
        request = EngineRequest(
            # The template writes the special tokens itself, the tokenizer must not add them again.
            prompt=tuple(tokenizer.encode(conversation.text, add_special=False)),
            params=self._params(sampling),
            constraint=conversation.constraint(tokenizer, wanted),
            visible_token_ids=conversation.visible_token_ids(tokenizer),
            thinking=_thinking(given, tokenizer, conversation),
            **more,
        )
        return request, conversation

    def _params(self, sampling: dict[str, Any]) -> SamplingParams:
        _known("generate", sampling, _PARAMS | _CONSTRAINTS.keys() | {*_SCALING, "deadline_s"})
        if isinstance(sampling.get("stop"), str):
            sampling = {**sampling, "stop": (sampling["stop"],)}
        for name in _LISTS:
            if isinstance(sampling.get(name), list | set | frozenset):
                sampling = {**sampling, name: tuple(sampling[name])}
        return with_defaults(self.model.defaults, sampling)


class _Stream:
    """A running request as an iterator of pieces; closing or dropping it before its end cancels."""

    def __init__(self, llm: LLM, request: EngineRequest, conversation: ChatPrompt | None = None) -> None:
        self._llm = llm  # its engine would stop with its last reference
        self._events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
        self._collector = CompletionCollector(request.params.n, conversation)
        self._pieces: deque[CompletionChunk] = deque()
        self._open = False
        self._ticket = llm.model.engine.submit(request, self._events.put)
        self._open = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CompletionChunk:
        while self._open and not self._pieces:
            events = self._events.get()
            self._open = not isinstance(events[-1], RequestFinished | RequestFailed)
            self._pieces += self._collector.take(events)
        if not self._pieces:
            raise StopIteration
        return self._pieces.popleft()

    def close(self) -> None:
        """Cancel what has not ended; no further piece comes."""
        self._pieces.clear()
        if self._open:
            self._open = False
            self._ticket.cancel()

    def __del__(self) -> None:
        self.close()


async def _astream(
    llm: LLM, request: EngineRequest, conversation: ChatPrompt | None = None
) -> AsyncIterator[CompletionChunk]:
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[list[EngineEvent]] = asyncio.Queue()
    collector = CompletionCollector(request.params.n, conversation)
    sink = _on_loop(loop, events.put_nowait)
    if request.constraint is None:
        ticket: RequestHandle = llm.model.engine.submit(request, sink)
    else:  # compiling a grammar may take a while
        ticket = await asyncio.to_thread(llm.model.engine.submit, request, sink)
    try:
        while collector.completion is None:
            for piece in collector.take(await events.get()):
                yield piece
    finally:
        if collector.completion is None:
            ticket.cancel()


def _on_loop(
    loop: asyncio.AbstractEventLoop, put: Callable[[list[EngineEvent]], None]
) -> Callable[[list[EngineEvent]], None]:
    def sink(events: list[EngineEvent]) -> None:
        if not loop.is_closed():  # its client is gone; there is nobody to tell
            loop.call_soon_threadsafe(put, events)

    return sink


def _last(pieces: Iterator[CompletionChunk]) -> Completion:
    completion = None
    for piece in pieces:
        completion = piece.completion
    assert completion is not None  # a stream ends with a completion or raises
    return completion


async def _alast(pieces: AsyncIterator[CompletionChunk]) -> Completion:
    completion = None
    async for piece in pieces:
        completion = piece.completion
    assert completion is not None
    return completion


def _constraint(sampling: dict[str, Any]) -> tuple[dict[str, Any], Constraint | None]:
    """The sampling keywords, and what the others say that the output must match."""
    given = {name: value for name, value in sampling.items() if name in _CONSTRAINTS}
    wanted = [name for name, value in given.items() if value is not None and value is not False]
    if len(wanted) > 1:
        raise InvalidRequest(
            f"{' and '.join(wanted)} both say what the output must match: give one", param=wanted[1]
        )
    rest = {name: value for name, value in sampling.items() if name not in given}
    return rest, _CONSTRAINTS[wanted[0]](given[wanted[0]]) if wanted else None


def _together(
    sampling: dict[str, Any], conversation: ChatPrompt | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sampling keywords, and what the others say of all choices together, as a request has it."""
    vote, best_by, most = (sampling.get(name) for name in _SCALING)
    place = None if conversation is None else conversation.answer_span
    rest = {name: value for name, value in sampling.items() if name not in (*_SCALING, "deadline_s")}
    return rest, {
        "scaling": scaling_of(vote, best_by, most, place=place),
        "deadline_s": sampling.get("deadline_s"),
    }


def _thinking(
    given: Mapping[str, Any], tokenizer: Tokenizer, conversation: ChatPrompt
) -> ReasoningBudget | None:
    """What bounds the reasoning of a chat."""
    most, least, continuation = (given[name] for name in _THINKING)
    if most is None and not least:
        if continuation is not None:
            raise InvalidRequest(
                "thinking_continuation needs min_thinking_tokens: give both", param="thinking_continuation"
            )
        return None
    return conversation.thinking(
        tokenizer,
        most,
        param="min_thinking_tokens" if most is None else "thinking_token_budget",
        min_tokens=least or 0,
        continuation=CONTINUATION if continuation is None else continuation,
    )


def _token_ids(prompt: object) -> tuple[int, ...]:
    """Token ids of any sequence of integers, NumPy's too."""
    try:
        if not isinstance(prompt, bytes | bytearray):
            return tuple(operator.index(token) for token in cast("Sequence[SupportsIndex]", prompt))
    except TypeError:
        pass
    raise InvalidRequest("the prompt is neither a text nor a sequence of token ids", param="prompt")


def _known(where: str, given: Mapping[str, object], known: frozenset[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise InvalidRequest(
            f"{where}() got unknown '{unknown[0]}'; known: {', '.join(sorted(known))}", param=unknown[0]
        )
