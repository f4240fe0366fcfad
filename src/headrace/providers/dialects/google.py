"""Google's Gemini API, `streamGenerateContent` with server-sent events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from headrace.chat.tool_formats.format import openai_id
from headrace.grammar.constraint import Constraint
from headrace.inference.attempts import TokenCounts
from headrace.inference.events import TokenText
from headrace.inference.requests import GenerationRequest
from headrace.providers.answer import Answer
from headrace.providers.call_memory import CALLS
from headrace.providers.dialect import Outgoing, Warn
from headrace.providers.dialects.errors import raise_error, reply_failure
from headrace.providers.dialects.google_body import UNKNOWN_SIGNATURE, body_of
from headrace.providers.failure import AttemptFailed, Failure
from headrace.providers.sse import SseEvent
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage, count, read_object

_FILTERED = (
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
)
_BROKEN = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "OTHER")


class _Call(Struct):
    name: str = ""
    args: dict[str, Any] | None = None


class _Part(Struct):
    text: str | None = None
    thought: bool = False
    signature: str | None = msgspec.field(default=None, name="thoughtSignature")
    call: _Call | None = msgspec.field(default=None, name="functionCall")


class _Content(Struct):
    parts: list[_Part] | None = None


class _TokenChoice(Struct):
    token: str = ""
    logprob: float = msgspec.field(default=0.0, name="logProbability")


class _TopChoices(Struct):
    candidates: list[_TokenChoice] = []


class _Logprobs(Struct):
    chosen: list[_TokenChoice] = msgspec.field(default_factory=list[_TokenChoice], name="chosenCandidates")
    top: list[_TopChoices] = msgspec.field(default_factory=list[_TopChoices], name="topCandidates")


class _Candidate(Struct):
    index: int = 0
    content: _Content | None = None
    reason: str | None = msgspec.field(default=None, name="finishReason")
    message: str = msgspec.field(default="", name="finishMessage")
    logprobs: _Logprobs | None = msgspec.field(default=None, name="logprobsResult")


class _Feedback(Struct):
    reason: str | None = msgspec.field(default=None, name="blockReason")


class _Chunk(Struct):
    candidates: list[_Candidate] | None = None
    usage: Raw = msgspec.field(default=Raw(), name="usageMetadata")
    feedback: _Feedback | None = msgspec.field(default=None, name="promptFeedback")
    version: str | None = msgspec.field(default=None, name="modelVersion")
    error: Raw = Raw()


_chunk = msgspec.json.Decoder(_Chunk)


class Google:
    """See `Dialect`."""

    headers: Mapping[str, str] = {}

    def outgoing(self, request: GenerationRequest, target: RemoteTarget, warn: Warn) -> Outgoing:
        """See `Dialect.outgoing`."""
        model = target.model.removeprefix("models/")
        path = f"/models/{quote(model, safe='')}:streamGenerateContent?alt=sse"
        return Outgoing(path, msgspec.json.encode(body_of(request, target)))

    def reader(
        self, request: GenerationRequest, target: RemoteTarget, answer: Answer, warn: Warn
    ) -> ContentReader:
        """See `Dialect.reader`."""
        return ContentReader(answer, warn, target.provider.name)

    def guarantees(self, wanted: Constraint, row: ProviderRow, *, closes: bool) -> bool:
        """See `Dialect.guarantees`."""
        return row.guarantees(wanted.kind)

    def failure(self, status: int, body: bytes) -> Failure:
        """See `Dialect.failure`."""
        found = reply_failure(status, body)
        if status == 400 and "API key" in found.message:
            return msgspec.structs.replace(found, kind="auth")
        return found


class ContentReader:
    """See `UpstreamReader`. Calls come whole. There is no mark of the end besides the finish reasons."""

    def __init__(self, answer: Answer, warn: Warn, provider: str) -> None:
        self._answer, self._warn, self._provider = answer, warn, provider
        self._calls = 0
        self.usage = ReportedUsage()
        self.fingerprint: str | None = None
        self.tier: str | None = None
        self.is_done = False

    def read(self, event: SseEvent) -> None:
        """See `UpstreamReader.read`."""
        chunk = _chunk.decode(event.data)
        if bytes(chunk.error) not in (b"", b"null"):
            raise_error(bytes(chunk.error))
        if chunk.feedback is not None and chunk.feedback.reason is not None:
            message = f"blocks what was sent: {chunk.feedback.reason[:60]}"
            raise AttemptFailed(Failure(phase="stream", kind="content", message=message, billed="maybe"))
        self.fingerprint = self.fingerprint or chunk.version
        if bytes(chunk.usage) not in (b"", b"null"):
            self.usage = google_usage(bytes(chunk.usage))
        for candidate in chunk.candidates or ():
            self._candidate(candidate)

    def _candidate(self, candidate: _Candidate) -> None:
        answer, index = self._answer, candidate.index
        if candidate.logprobs is not None:
            answer.logprobs(index, _token_texts(candidate.logprobs))
        parts = candidate.content.parts if candidate.content is not None else None
        for part in parts or ():
            if part.call is not None:
                self._call(index, part.call, part.signature)
            elif part.text and part.thought:
                answer.reasoning(index, part.text)
            elif part.text:
                answer.text(index, part.text)
        if candidate.reason is not None:
            self._finish(index, candidate)

    def _call(self, index: int, call: _Call, signature: str | None) -> None:
        key, call_id = self._calls, openai_id()
        self._calls += 1
        self._answer.call(index, key, call_id, call.name)
        self._answer.arguments(index, key, msgspec.json.encode(call.args or {}).decode())
        self._answer.end_call(index)
        CALLS.keep(self._provider, call_id, (signature or UNKNOWN_SIGNATURE).encode())

    def _finish(self, index: int, candidate: _Candidate) -> None:
        reason = candidate.reason or ""
        if reason in _BROKEN:
            said = f"ended its answer with {reason}"
            raise AttemptFailed(Failure(phase="stream", kind="malformed", message=said, billed="yes"))
        if reason in _FILTERED:
            self._answer.finish(index, "content_filter")
            return
        if reason not in ("STOP", "MAX_TOKENS"):
            self._warn("finish_reason", f"the target ended with {reason[:40]!r}, which is taken as stop")
        self._answer.finish(index, "length" if reason == "MAX_TOKENS" else "stop")


def google_usage(raw: bytes) -> ReportedUsage:
    """`usageMetadata`: the prompt includes what was cached, the candidates leave out the thoughts."""
    fields = read_object(raw)
    if fields is None:
        return ReportedUsage(raw=raw)
    try:
        prompt = count(fields, "promptTokenCount") + count(fields, "toolUsePromptTokenCount")
        cached = count(fields, "cachedContentTokenCount")
        if cached > prompt:
            raise ValueError("a part is larger than the whole")
        tokens = TokenCounts(
            input=prompt - cached,
            cache_read=cached,
            output=count(fields, "candidatesTokenCount"),
            reasoning=count(fields, "thoughtsTokenCount"),
        )
    except ValueError:
        return ReportedUsage(raw=raw)
    return ReportedUsage(tokens if tokens != TokenCounts() else None, raw)


def _token_texts(logprobs: _Logprobs) -> list[TokenText]:
    tops = [*logprobs.top, *[_TopChoices()] * len(logprobs.chosen)]
    return [
        TokenText(
            *(-1, one.token.encode(), one.logprob, 0),
            tuple(TokenText(-1, other.token.encode(), other.logprob) for other in top.candidates),
        )
        for one, top in zip(logprobs.chosen, tops, strict=False)
    ]
