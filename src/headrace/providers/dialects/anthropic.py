"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from headrace.grammar.constraint import Constraint
from headrace.inference.attempts import TokenCounts
from headrace.inference.requests import GenerationRequest
from headrace.providers.answer import Answer, MalformedAnswer
from headrace.providers.call_memory import CALLS
from headrace.providers.dialect import Outgoing, Warn
from headrace.providers.dialects.anthropic_body import body_of
from headrace.providers.dialects.anthropic_thoughts import Thoughts
from headrace.providers.dialects.errors import raise_error, reply_failure
from headrace.providers.failure import Failure
from headrace.providers.sse import SseEvent
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage, count, grown, read_object

VERSION = "2023-06-01"
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class _Block(Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str = ""
    thinking: str = ""
    data: str = ""
    input: dict[str, Any] | None = None


class _Delta(Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Message(Struct):
    usage: Raw = Raw()


class _Event(Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Raw = Raw()
    error: Raw = Raw()


_event = msgspec.json.Decoder(_Event)


class Anthropic:
    """See `Dialect`."""

    headers: Mapping[str, str] = {"anthropic-version": VERSION}

    def outgoing(self, request: GenerationRequest, target: RemoteTarget, warn: Warn) -> Outgoing:
        """See `Dialect.outgoing`."""
        return Outgoing("/messages", msgspec.json.encode(body_of(request, target, warn)))

    def reader(
        self, request: GenerationRequest, target: RemoteTarget, answer: Answer, warn: Warn
    ) -> MessageReader:
        """See `Dialect.reader`."""
        return MessageReader(answer, warn, target.provider.name)

    def guarantees(self, wanted: Constraint, row: ProviderRow, *, closes: bool) -> bool:
        """See `Dialect.guarantees`."""
        return row.guarantees(wanted.kind)

    def failure(self, status: int, body: bytes) -> Failure:
        """See `Dialect.failure`."""
        return reply_failure(status, body)


class MessageReader:
    """See `UpstreamReader`. Blocks follow one another; usage comes at the start and grows to the end."""

    def __init__(self, answer: Answer, warn: Warn, provider: str) -> None:
        self._answer, self._warn, self._provider = answer, warn, provider
        self._open: _Block | None = None
        self._open_index = -1
        self._thoughts = Thoughts()
        self._calls: list[str] = []
        self.usage = ReportedUsage()
        self.fingerprint: str | None = None
        self.tier: str | None = None
        self.is_done = False

    def read(self, event: SseEvent) -> None:
        """See `UpstreamReader.read`."""
        found = _event.decode(event.data)
        match found.type or event.name:
            case "content_block_delta" if found.delta is not None:
                self._more(found.index, found.delta)
            case "content_block_start" if found.content_block is not None:
                self._start(found.index, found.content_block)
            case "content_block_stop":
                self._stop()
            case "message_start" if found.message is not None:
                self._count(found.message.usage)
            case "message_delta":
                self._count(found.usage)
                if found.delta is not None and found.delta.stop_reason is not None:
                    self._finish(found.delta)
            case "message_stop":
                self.is_done = True
            case "error":
                raise_error(bytes(found.error) or event.data)
            case _:
                pass  # pings, and events that newer versions of the API add

    def _start(self, index: int, block: _Block) -> None:
        self._stop()
        self._open, self._open_index = block, index
        if block.type == "tool_use":
            self._answer.call(0, index, block.id, block.name)
            self._calls.append(block.id or "")
            if block.input:
                self._answer.arguments(0, index, msgspec.json.encode(block.input).decode())
        elif block.type == "text" and block.text:
            self._answer.text(0, block.text)
        elif block.type == "thinking":
            self._thoughts.begin("thinking", block.thinking)
            if block.thinking:
                self._answer.reasoning(0, block.thinking)
        elif block.type == "redacted_thinking":
            self._thoughts.begin("redacted_thinking", block.data)

    def _more(self, index: int, delta: _Delta) -> None:
        if self._open is None or index != self._open_index:
            raise MalformedAnswer("sent more of a block that is not open")
        match delta.type:
            case "text_delta":
                if delta.text:
                    self._answer.text(0, delta.text)
            case "input_json_delta":
                if delta.partial_json:
                    self._answer.arguments(0, index, delta.partial_json)
            case "thinking_delta":
                if delta.thinking and self._open.type == "thinking":
                    self._thoughts.add(delta.thinking)
                    self._answer.reasoning(0, delta.thinking)
            case "signature_delta":
                if self._open.type == "thinking":
                    self._thoughts.sign(delta.signature)
            case _:
                self._warn("content", f"parts of the kind {delta.type[:40]!r} are left out")

    def _stop(self) -> None:
        block, self._open = self._open, None
        if block is None:
            return
        if block.type == "tool_use":
            self._answer.end_call(0)
        elif block.type == "thinking" and self._thoughts.signature:
            self._answer.reasoning(0, "", self._thoughts.signature)

    def _finish(self, delta: _Delta) -> None:
        reason = delta.stop_reason or ""
        if reason not in _REASONS or reason == "pause_turn":
            self._warn("finish_reason", f"the target ended with {reason[:40]!r}, which is taken as stop")
        self._answer.finish(0, _REASONS.get(reason, "stop"), delta.stop_sequence)
        thoughts = self._thoughts.packed() if self._calls else None
        if thoughts is not None:
            CALLS.keep(self._provider, self._calls[0], thoughts)

    def _count(self, raw: Raw) -> None:
        if bytes(raw) in (b"", b"null"):
            return
        found = anthropic_usage(bytes(raw))
        tokens = grown(self.usage.tokens, found.tokens)
        self.usage = ReportedUsage(tokens, _merged(self.usage.raw, found.raw))


def anthropic_usage(raw: bytes) -> ReportedUsage:
    """The `usage` of a message: `input_tokens` leave out what was read from or written to a cache."""
    fields = read_object(raw)
    if fields is None:
        return ReportedUsage(raw=raw)
    try:
        hour = count(fields, "cache_creation", "ephemeral_1h_input_tokens")
        written = count(fields, "cache_creation_input_tokens")
        output, thinking = (
            count(fields, "output_tokens"),
            count(fields, "output_tokens_details", "thinking_tokens"),
        )
        if hour > written or thinking > output:
            raise ValueError("a part is larger than the whole")
        tokens = TokenCounts(
            input=count(fields, "input_tokens"),
            cache_read=count(fields, "cache_read_input_tokens"),
            cache_write=written - hour,
            cache_write_1h=hour,
            output=output - thinking,
            reasoning=thinking,
        )
    except ValueError:
        return ReportedUsage(raw=raw)
    return ReportedUsage(tokens if tokens != TokenCounts() else None, raw)


def _merged(before: bytes, after: bytes) -> bytes:
    """One usage object of two reports: later fields replace earlier ones."""
    first, second = read_object(before), read_object(after)
    if first is None or second is None:
        return after or before
    return msgspec.json.encode(first | {key: value for key, value in second.items() if value is not None})
