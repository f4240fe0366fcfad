"""Result of one request: arrival times of its output, token counts, or the error."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
from msgspec import Struct

from headrace.bench.serve.http_client import Exchange

_EVENT_END = re.compile(rb"\n\r?\n")
REFUSALS = ("http 429", "http 503", "http 529")
"""Statuses of rejected requests: rate limits and overload."""


class RequestError(Struct, frozen=True):
    """`kind` is the key for counting: connection, timeout, cut off, http STATUS, stream error, malformed,
    empty. `message` is the server's or the operating system's.
    """

    kind: str
    message: str

    @property
    def refused(self) -> bool:
        """True if the server rejected the request because of load."""
        return self.kind in REFUSALS


class Outcome(Struct, frozen=True, kw_only=True):
    """Times in seconds of one monotonic clock. `due_s` is when the request should be sent, `sent_s` when
    its connection was opened; `output_s` are arrival times of events with output (text, reasoning, a
    tool call), `ended_s` is the end. `prompt_tokens` and `cached_tokens` are as reported by the
    server.
    """

    due_s: float
    sent_s: float
    ended_s: float
    output_s: tuple[float, ...] = ()
    output_tokens: int = 0
    tokens_reported: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    fault: RequestError | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token: from when the request was due to the first output."""
        return self.output_s[0] - self.due_s

    @property
    def e2e_s(self) -> float:
        """End-to-end latency: from when the request was due to the last output."""
        return self.output_s[-1] - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: (e2e - TTFT) / (output tokens - 1); None for one token."""
        if self.output_tokens < 2:
            return None
        return (self.output_s[-1] - self.output_s[0]) / (self.output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: the gaps between events with output, however many tokens an event has."""
        return [after - before for before, after in itertools.pairwise(self.output_s)]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    def has_output(self) -> bool:
        delta = self.delta or _Delta()
        return bool(
            self.text or delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls
        )


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Read(Struct):
    """Contents of a stream so far."""

    output_s: list[float]
    usage: _Usage | None = None
    done: bool = False


def outcome_of(exchange: Exchange, due_s: float, sent_s: float) -> Outcome:
    """The outcome of an exchange that has ended."""
    read = _Read([])
    fault = _fault(exchange, read)
    usage = read.usage
    details = usage and usage.prompt_tokens_details
    return Outcome(
        due_s=due_s,
        sent_s=sent_s,
        ended_s=exchange.ended_s,
        output_s=tuple(read.output_s),
        output_tokens=usage.completion_tokens if usage else len(read.output_s),
        tokens_reported=usage is not None,
        prompt_tokens=usage and usage.prompt_tokens,
        cached_tokens=details and details.cached_tokens,
        fault=fault,
    )


def _fault(exchange: Exchange, read: _Read) -> RequestError | None:
    if exchange.lost and not exchange.status:
        return RequestError("cut off", "the connection ended before the answer")
    if exchange.status != 200:
        return RequestError(f"http {exchange.status}", error_message(bytes(exchange.body)))
    fault = _read_stream(exchange, read)
    if fault is None and exchange.lost and not read.done:
        return RequestError("cut off", "the connection ended within the answer")
    if fault is None and not read.output_s:
        return RequestError("empty", "the answer had no output")
    return fault


def _read_stream(exchange: Exchange, read: _Read) -> RequestError | None:
    events = _EVENT_END.split(bytes(exchange.body))
    if not exchange.event_times_s:
        return RequestError("malformed", f"no stream of events: {bytes(exchange.body[:200])!r}")
    for at, event in zip(exchange.event_times_s, events, strict=False):
        for line in event.splitlines():
            if not line.startswith(b"data:"):
                continue  # keep-alive comments, event names
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                read.done = True
                continue
            try:
                chunk = _decode_chunk(data)
            except msgspec.DecodeError as error:
                return RequestError("malformed", f"{error} in {data[:200]!r}")
            if chunk.error is not None:
                return RequestError("stream error", error_message(data))
            read.usage = chunk.usage or read.usage
            if any(choice.has_output() for choice in chunk.choices):
                read.output_s.append(at)
    return None


def error_message(body: bytes) -> str:
    """The error text: OpenAI's format, FastAPI's `detail`, or the beginning of the body."""
    try:
        found: Any = msgspec.json.decode(body)
        error = found.get("error", found.get("detail", found))
        message = error.get("message", error) if isinstance(error, dict) else error  # pyright: ignore
        return str(message)[:400]  # pyright: ignore[reportUnknownArgumentType]
    except (msgspec.DecodeError, AttributeError):
        return body[:400].decode(errors="replace") or "no message"
