"""A model that needs no weights: it implements the engine's contract and says back words of the prompt."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.engine.client import EngineLimits, EngineStatus
from headrace.engine.request import (
    ChoiceFinished,
    ContinuationsScored,
    Delta,
    EngineEvent,
    EngineRequest,
    EventCallback,
    PromptLogprobs,
    RequestFailed,
    RequestFinished,
    RequestHandle,
    Timing,
    TokenLogprob,
    Usage,
)
from headrace.engine.submissions import submitted
from headrace.errors import ContextLengthExceeded, HeadraceError, Overloaded, TemplateError
from headrace.grammar.compile import compile_grammar
from headrace.sampling.params import SamplingParams
from headrace.tokenization.token_bytes import Kind
from headrace.tokenization.tokenizer import MarkedTokens
from headrace.weights.head import Head, TaskName
from headrace.weights.input_rules import InputRules

CONTEXT_LENGTH = 4096


class FakeTokenizer:
    """One token per byte; 256 is BOS."""

    bos_id = 256
    is_bounded = True
    eos_ids = frozenset[int]()
    pieces = SimpleNamespace(
        kind=Kind.BYTE_LEVEL,
        special_ids=frozenset(),
        token_of=lambda token: chr(token) if token <= 256 else None,
    )

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return ([256] if add_special else []) + list(text.encode())

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        characters = [(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()]
        return list(text.encode()), characters

    def encode_marked(self, text: str) -> MarkedTokens:
        ids, places = self.encode_with_places(text)
        return MarkedTokens(before=(256,), after=(), ids=tuple(ids), places=tuple(places), pieces=())

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int]:
        ids = self.encode(first)
        return [*ids, *second.encode()], len(ids)

    def encode_prompt(self, text: str, *, parse_special: bool = True) -> list[int]:
        return self.encode(text)

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def id_of(self, token: str) -> int | None:
        return None

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<s>"


class FakeTemplate:
    """`role: content` lines; `source` tells how the model writes calls and reasoning."""

    def __init__(self, source: str = "") -> None:
        self.source = self.tool_source = source
        self.tail = ""
        self.tools: Any = None
        self.variables: Any = None
        self.reads = frozenset({"messages", "refuse", *(["tools"] if "tools" in source else [])})

    def render(
        self,
        messages: list[Any],
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: dict[str, Any] | None = None,
    ) -> str:
        self.tools, self.variables = tools, variables
        if variables and variables.get("refuse"):
            raise TemplateError("the template refuses: say something else", param="messages")
        lines = [f"{_get(m, 'role')}: {_get(m, 'content')}" for m in messages]
        return "\n".join([*lines, "assistant:"] if add_generation_prompt else lines) + self.tail


def _get(message: Any, name: str) -> Any:
    return message[name] if isinstance(message, dict) else getattr(message, name)


@dataclass
class _Running:
    request: EngineRequest
    sink: EventCallback
    text: str
    position: int = 0
    cancelled: bool = False
    paused: bool = False


class FakeEngine:
    """Steps on its own thread: each step yields one character of `answer` for each choice."""

    def __init__(self, answer: str = "a bé c€ d. ", pause_s: float = 0.0, *, ends: bool = False) -> None:
        """`ends`: the answer is said once, not again and again up to max_tokens."""
        self.answer = answer
        self.ends = ends
        self.pause_s = pause_s
        self.refusal: HeadraceError | None = None
        self.failure: HeadraceError | None = None
        self.go = threading.Event()  # clear: the loop stands still
        self.go.set()
        self.submitted: list[EngineRequest] = []
        self.cancelled: list[str] = []
        self.held_requests: set[str] = set()  # at any time
        self.cancelled_event = threading.Event()
        self.alive = True
        self.limits = EngineLimits(context_length=CONTEXT_LENGTH, max_num_seqs=32)
        self._steps = 0
        self._running: dict[str, _Running] = {}
        self._wake = threading.Condition()
        self._ids = itertools.count()
        self._stop = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        if self.refusal is not None:
            raise self.refusal
        if len(request.prompt) + (request.params.max_tokens or 1) > CONTEXT_LENGTH:
            raise ContextLengthExceeded(
                f"prompt has {len(request.prompt):,} tokens, the limit is {CONTEXT_LENGTH:,}: shorten it",
                param="messages",
            )
        if request.constraint is not None:
            compile_grammar(request.constraint, {})
        with self._wake:
            if request.request_id in self._running:
                raise AssertionError("request ids must be unique")
            self.submitted.append(request)
            self._running[request.request_id] = _Running(request, sink, self.answer)
            self._wake.notify()
        return RequestHandle(request.request_id, self._cancel, self._pause)

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        return submitted(lambda: self.submit(request, sink))

    def status(self) -> EngineStatus:
        running = len(self._running)
        return EngineStatus(running, 0, 100 - running, 100, 100, self._steps, time.monotonic(), self.alive)

    def close(self) -> None:
        with self._wake:
            self._stop = True
            self._wake.notify()
        self.go.set()
        self._thread.join()

    def _cancel(self, request_id: str) -> None:
        with self._wake:
            self.cancelled.append(request_id)
            if request_id in self._running:
                self._running[request_id].cancelled = True
        self.cancelled_event.set()

    def _pause(self, request_id: str, paused: bool) -> None:
        with self._wake:
            if request_id in self._running:
                self._running[request_id].paused = paused
                self.held_requests.add(request_id)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._running and not self._stop:
                    self._wake.wait()
                if self._stop:
                    return
                running = list(self._running.values())
            self.go.wait()
            for item in running:
                if item.paused and not item.cancelled:
                    continue
                events = self._events(item)
                if isinstance(events[-1], RequestFinished | RequestFailed):
                    del self._running[item.request.request_id]
                item.sink(events)
            self._steps += 1
            if self.pause_s:
                time.sleep(self.pause_s)

    def _events(self, item: _Running) -> list[EngineEvent]:
        params = item.request.params
        limit = params.max_tokens or len(item.text)
        ended = params.max_tokens is None or (self.ends and len(item.text) < limit)
        limit = len(item.text) if ended else limit
        if self.failure is not None and item.position > 0:
            return [RequestFailed(self.failure)]
        if item.cancelled:
            ends: list[EngineEvent] = [ChoiceFinished(choice, "cancelled") for choice in range(params.n)]
            return [*ends, self._done(item)]
        if item.request.continuations:
            sums = tuple(-float(len(tokens)) for tokens in item.request.continuations)
            return [ContinuationsScored(sums), ChoiceFinished(0, "stop"), self._done(item)]
        letter = item.text[item.position % len(item.text)]
        events: list[EngineEvent] = []
        if params.prompt_logprobs is not None and item.position == 0:
            alternatives = tuple((65 + i, -0.25 - i) for i in range(params.prompt_logprobs))
            scores = (TokenLogprob(token, -2.0, alternatives, 7) for token in item.request.prompt[1:])
            events.append(PromptLogprobs(tuple(scores)))
        item.position += 1
        for choice in range(params.n):
            data = letter.encode()
            logprobs = ()
            if params.logprobs is not None:
                top = tuple((65 + i, -0.5 - i - choice) for i in range(params.logprobs))
                logprobs = tuple(TokenLogprob(byte, -0.5 - choice, top) for byte in data)
            events.append(Delta(choice, letter, tuple(data), logprobs))
        if item.position >= limit:
            reason = "stop" if ended else "length"
            events += [ChoiceFinished(choice, reason) for choice in range(params.n)]
            events.append(self._done(item))
        return events

    def _done(self, item: _Running) -> RequestFinished:
        params = item.request.params
        usage = Usage(len(item.request.prompt), item.position * params.n, 0, "new prompt")
        seed = 7 if params.seed is None else params.seed
        return RequestFinished(usage, Timing(0.001, 0.002, 0.01), seed)


@dataclass
class FakeModel:
    """What `create_app` takes."""

    name: str = "fake/model"
    context_length: int = CONTEXT_LENGTH
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    template: FakeTemplate | None = field(default_factory=FakeTemplate)
    engine: FakeEngine = field(default_factory=FakeEngine)
    defaults: SamplingParams = SamplingParams()
    template_variables: dict[str, Any] = field(default_factory=dict[str, Any])
    created_s: int = 1_700_000_000
    folder: Path = Path("fake")
    cache_failures: int = 0
    cache_damages: int = 0
    head: Head | None = None
    tasks: tuple[TaskName, ...] = ("generate",)
    plan: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            kv_bytes=102_400,
            total_bytes=409_600,
            kv_type="bf16",
            weights_bytes=0,
            step_tokens=512,
            step_rows=32,
            weight_bytes_per_token=1000,
            reads_memory=True,
            smaller_bytes_per_token=0,
            operations_per_token=2000.0,
            weight_format="bf16",
        )
    )
    input_rules: InputRules = InputRules()
    adapter: str = ""
    base: str = ""

    def close(self) -> None:
        self.engine.close()


def overloaded() -> Overloaded:
    """The refusal of a full queue."""
    return Overloaded("4,128 sequences are queued or running: try again later", retry_after_s=2.0)
