"""OpenAI's chat completions and completions, which most providers and servers speak."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from headrace.grammar.constraint import Constraint
from headrace.inference.events import TokenText
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.providers.answer import Answer, MalformedAnswer
from headrace.providers.dialect import Outgoing, Warn
from headrace.providers.dialects.errors import raise_error, reply_failure
from headrace.providers.dialects.openai_body import body_of, is_guaranteed
from headrace.providers.failure import Failure
from headrace.providers.sse import SseEvent
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage, openai_usage

_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_length": "length",
}
_BROKEN = ("error", "insufficient_system_resource", "abort", "cancelled")
"""Reasons with which a provider says that it has failed."""


class _Function(Struct):
    name: str | None = None
    arguments: str | Raw | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _ThinkingText(Struct):
    text: str = ""


class _ContentPart(Struct):
    """Mistral's form of a content with reasoning."""

    type: str = ""
    text: str | None = None
    thinking: list[_ThinkingText] | None = None


class _Delta(Struct):
    content: str | list[_ContentPart] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Logprob(Struct):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None
    top_logprobs: list[_Logprob] = []


class _Logprobs(Struct):
    """Of chat completions `content`; of completions the other lists."""

    content: list[_Logprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: _Logprobs | None = None


class _GroqUsage(Struct):
    usage: Raw = Raw()


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: Raw = Raw()
    error: Raw = Raw()
    system_fingerprint: str | None = None
    service_tier: str | None = None
    x_groq: _GroqUsage | None = None
    warnings: Raw = Raw()


class _Warning(Struct):
    param: str
    message: str


MAX_WARNINGS, MAX_WARNING = 16, 500
_warnings = msgspec.json.Decoder(list[_Warning])
_chunk = msgspec.json.Decoder(_Chunk)
_NOTHING = (b"", b"null")


class OpenAIChat:
    """See `Dialect`."""

    headers: Mapping[str, str] = {}

    def outgoing(self, request: GenerationRequest, target: RemoteTarget, warn: Warn) -> Outgoing:
        """See `Dialect.outgoing`."""
        path = "/chat/completions" if isinstance(request, ChatRequest) else "/completions"
        return Outgoing(path, msgspec.json.encode(body_of(request, target)))

    def reader(
        self, request: GenerationRequest, target: RemoteTarget, answer: Answer, warn: Warn
    ) -> ChatStreamReader:
        """See `Dialect.reader`."""
        return ChatStreamReader(answer, warn)

    def guarantees(self, wanted: Constraint, row: ProviderRow, *, closes: bool) -> bool:
        """See `Dialect.guarantees`."""
        return is_guaranteed(wanted, row, closes=closes)

    def failure(self, status: int, body: bytes) -> Failure:
        """See `Dialect.failure`."""
        return reply_failure(status, body)


class ChatStreamReader:
    """See `UpstreamReader`. `[DONE]` may be missing; usage may come in any chunk, the last one counts."""

    def __init__(self, answer: Answer, warn: Warn) -> None:
        self._answer, self._warn = answer, warn
        self.usage = ReportedUsage()
        self.fingerprint: str | None = None
        self.tier: str | None = None
        self.is_done = False
        self._warned: set[tuple[str, str]] = set()

    def read(self, event: SseEvent) -> None:
        """See `UpstreamReader.read`."""
        data = event.data
        if data == b"[DONE]":
            self.is_done = True
            return
        chunk = _chunk.decode(data)
        if bytes(chunk.error) not in _NOTHING or event.name == "error":
            raise_error(bytes(chunk.error) or data)
        if chunk.system_fingerprint is not None and self.fingerprint is None:
            self.fingerprint = chunk.system_fingerprint[:200]
        if chunk.service_tier is not None:
            self.tier = chunk.service_tier[:40]
        usage = chunk.x_groq.usage if chunk.x_groq is not None else chunk.usage
        if bytes(usage) not in _NOTHING:
            self.usage = openai_usage(bytes(usage))
        if bytes(chunk.warnings) not in _NOTHING:
            self._relay(chunk.warnings)
        for choice in chunk.choices or ():
            self._choice(choice)

    def _relay(self, warnings: Raw) -> None:
        """What another Headrace warns of. Others have no such field, or one with another meaning."""
        try:
            found = _warnings.decode(warnings)
        except msgspec.ValidationError:
            return
        for one in found:
            known = one.param[:MAX_WARNING], one.message[:MAX_WARNING]
            if known not in self._warned and len(self._warned) < MAX_WARNINGS:
                self._warned.add(known)
                self._warn(known[0], f"the target says: {known[1]}")

    def _choice(self, choice: _Choice) -> None:
        answer, index = self._answer, choice.index
        if choice.logprobs is not None and (tokens := _token_texts(choice.logprobs)):
            answer.logprobs(index, tokens)
        if choice.text:
            answer.text(index, choice.text)
        if choice.delta is not None:
            self._delta(index, choice.delta)
        if choice.finish_reason is not None:
            self._finish(index, choice)

    def _delta(self, index: int, delta: _Delta) -> None:
        answer, content = self._answer, delta.content
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning:
            answer.reasoning(index, reasoning)
        if isinstance(content, str):
            if content:
                answer.text(index, content)
        elif content is not None:
            for part in content:
                self._part(index, part)
        if delta.refusal:
            self._warn("refusal", "the target refused: its text is the answer")
            answer.text(index, delta.refusal)
        for number, call in enumerate(delta.tool_calls or ()):
            self._call(index, number if call.index is None else call.index, call)

    def _part(self, index: int, part: _ContentPart) -> None:
        if part.text:
            self._answer.text(index, part.text)
        for thought in part.thinking or ():
            if thought.text:
                self._answer.reasoning(index, thought.text)

    def _call(self, index: int, key: int, call: _Call) -> None:
        function = call.function or _Function()
        self._answer.call(index, key, call.id, function.name)
        arguments = function.arguments
        if isinstance(arguments, Raw):
            arguments = "" if bytes(arguments) == b"null" else bytes(arguments).decode()
        if arguments:
            self._answer.arguments(index, key, arguments)

    def _finish(self, index: int, choice: _Choice) -> None:
        reason = choice.finish_reason or ""
        if reason in _BROKEN:
            raise_error(b'{"message":"ended its answer with an error"}')
        if reason not in _REASONS:
            if not reason:
                return  # some servers send "" until the end
            self._warn("finish_reason", f"the target ended with {reason[:40]!r}, which is taken as stop")
        self._answer.finish(index, _REASONS.get(reason, "stop"), choice.stop_reason)


def _token_texts(logprobs: _Logprobs) -> list[TokenText]:
    if logprobs.content is not None:
        return [_token_text(one) for one in logprobs.content]
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(tokens)
    if not len(tokens) == len(values) == len(tops):
        raise MalformedAnswer("sent log probabilities that do not go with its tokens")
    return [
        TokenText(
            *(-1, token.encode(), 0.0 if value is None else value, 0),
            tuple(TokenText(-1, text.encode(), other) for text, other in (top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]


def _token_text(one: _Logprob) -> TokenText:
    try:
        data = one.token.encode() if one.bytes is None else bytes(one.bytes)
    except ValueError:
        raise MalformedAnswer("sent a token with bytes that are none") from None
    return TokenText(-1, data, one.logprob, 0, tuple(_token_text(other) for other in one.top_logprobs))
