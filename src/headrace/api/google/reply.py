"""From inference events to a reply of generateContent, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headrace.api.google.errors import google_error
from headrace.api.google.schema import (
    AnswerContent,
    AnswerPart,
    Candidate,
    FinishReason,
    GenerateReply,
    GoogleCalled,
    LogprobsResult,
    TokenCandidate,
    TopTokens,
    UsageMetadata,
)
from headrace.api.http.event_stream import MEDIA_TYPE, sse_event
from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)
from headrace.engine.request import Usage
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    Prepared,
    PromptFinished,
    TokenText,
)
from headrace.inference.result import ResultCollector

_REASONS: dict[str, FinishReason] = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}


class PartReader:
    """The parts of one choice. Calls come whole: their fragments are kept until they end."""

    def __init__(self, *, thoughts: bool) -> None:
        self._thoughts = thoughts
        self._calls: dict[int, tuple[CallStart, list[str]]] = {}
        self.failed: list[str] = []

    def read(self, events: Sequence[AnswerEvent]) -> list[AnswerPart]:
        """What is complete now."""
        found: list[AnswerPart] = []
        for event in events:
            match event:
                case Text(text):
                    found.append(AnswerPart(text))
                case Reasoning(text):
                    if text and self._thoughts:
                        found.append(AnswerPart(text, thought=True))
                case CallStart(index):
                    self._calls[index] = (event, [])
                case Arguments(index, text):
                    self._calls[index][1].append(text)
                case CallEnd(index):
                    found.append(self._call(*self._calls.pop(index)))
                case CallFailed(index):
                    self._calls.pop(index, None)
        return found

    def close(self, call: CallContext) -> None:
        """A call that was cut off has no arguments to pass on: a warning says so."""
        for start, _ in self._calls.values():
            call.warn(
                "generationConfig.maxOutputTokens",
                f"the call of {start.name} was cut short and left out: maxOutputTokens or the context was "
                "reached",
            )

    def _call(self, start: CallStart, fragments: list[str]) -> AnswerPart:
        arguments: dict[str, Any] = msgspec.json.decode("".join(fragments) or "{}", type=dict[str, Any])
        return AnswerPart(function_call=GoogleCalled(start.id, start.name, arguments))


class GenerateFormat(Struct, frozen=True):
    """The format of a reply. With `thoughts` the reasoning is a part of it; `as_array`: a stream is a JSON
    array instead of server-sent events."""

    id: str
    thoughts: bool
    as_array: bool = False

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> GenerateReply:
        """The reply that is not streamed."""
        [prompt] = result.prompts
        candidates: list[Candidate] = []
        for index, choice in enumerate(prompt.choices):
            reader = PartReader(thoughts=self.thoughts)
            parts = _joined(reader.read(choice.parts))
            reader.close(call)
            ended = _REASONS.get(choice.ended.reason, "STOP")
            logprobs = _logprobs(choice.logprobs)
            average = UNSET if logprobs is UNSET else logprobs.log_probability_sum / len(choice.logprobs)
            candidates.append(Candidate(index, AnswerContent(parts), ended, logprobs, average))
        thought = sum(choice.ended.reasoning_tokens for choice in prompt.choices)
        return self.reply(prepared, call, candidates, _usage(prompt.ended.usage, thought))

    def stream(self, prepared: Prepared, call: CallContext) -> GenerateWriter:
        """The writer of a streamed reply."""
        return GenerateWriter(self, prepared, call)

    def reply(
        self,
        prepared: Prepared,
        call: CallContext,
        candidates: list[Candidate],
        usage: UsageMetadata | UnsetType = UNSET,
    ) -> GenerateReply:
        """A reply, or an event of a stream; warnings stand in the last one."""
        warnings = call.warnings if usage is not UNSET and call.warnings else UNSET
        return GenerateReply(candidates, prepared.model, self.id, usage, warnings)


class GenerateWriter:
    """A streamed reply. The last event has the finish reasons and the token counts."""

    def __init__(self, shape: GenerateFormat, prepared: Prepared, call: CallContext) -> None:
        self._shape, self._prepared, self._call = shape, prepared, call
        self._readers: dict[int, PartReader] = {}
        self._endings: dict[int, FinishReason] = {}
        self._thought_tokens = 0
        self._usage = Usage(0, 0, 0)
        self._written = False
        self.media_type = "application/json" if shape.as_array else MEDIA_TYPE

    def opening(self) -> bytes:
        """Nothing before the first content."""
        return b"[" if self._shape.as_array else b""

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """An event for the new parts of all choices."""
        parts: dict[int, list[AnswerPart]] = {}
        tokens: dict[int, list[TokenText]] = {}
        for event in events:
            if isinstance(event, OutputDelta | OutputFinished):
                reader = self._readers.setdefault(event.choice, PartReader(thoughts=self._shape.thoughts))
                parts.setdefault(event.choice, []).extend(reader.read(event.parts))
            if isinstance(event, OutputDelta):
                tokens.setdefault(event.choice, []).extend(event.logprobs)
            elif isinstance(event, OutputFinished):
                self._readers[event.choice].close(self._call)
                self._endings[event.choice] = _REASONS.get(event.reason, "STOP")
                self._thought_tokens += event.reasoning_tokens
            elif isinstance(event, PromptFinished):
                self._usage = event.usage
        candidates = [
            Candidate(index, AnswerContent(_joined(found)), logprobs_result=_logprobs(tokens.get(index, [])))
            for index, found in parts.items()
            if found or tokens.get(index)
        ]
        return self._event(self._shape.reply(self._prepared, self._call, candidates)) if candidates else b""

    def finish(self) -> bytes:
        """Why each choice ended, and the token counts."""
        candidates = [Candidate(index, finish_reason=why) for index, why in sorted(self._endings.items())]
        usage = _usage(self._usage, self._thought_tokens)
        last = self._event(self._shape.reply(self._prepared, self._call, candidates, usage))
        return last + (b"]" if self._shape.as_array else b"")

    def failure(self, error: HeadraceError) -> bytes:
        """The event that ends a stream that failed."""
        _, body = google_error(error, self._call)
        return self._event(body) + (b"]" if self._shape.as_array else b"")

    def _event(self, body: Struct) -> bytes:
        if not self._shape.as_array:
            return sse_event(body)
        between, self._written = b",\n" if self._written else b"", True
        return between + msgspec.json.encode(body)


def _joined(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Neighboring texts of one kind as one."""
    found: list[AnswerPart] = []
    for part in parts:
        last = found[-1] if found else None
        if (
            last is not None
            and isinstance(last.text, str)
            and isinstance(part.text, str)
            and last.thought == part.thought
        ):
            found[-1] = AnswerPart(last.text + part.text, part.thought)
        else:
            found.append(part)
    return found


def _logprobs(tokens: Sequence[TokenText]) -> LogprobsResult | UnsetType:
    if not tokens:
        return UNSET
    tops = [TopTokens([_token(other) for other in one.top]) for one in tokens]
    return LogprobsResult([_token(one) for one in tokens], tops, sum(one.logprob for one in tokens))


def _token(one: TokenText) -> TokenCandidate:
    return TokenCandidate(one.bytes.decode(errors="replace"), one.token, one.logprob)


def _usage(usage: Usage, thought: int) -> UsageMetadata:
    return UsageMetadata(
        prompt_token_count=usage.prompt_tokens,
        total_token_count=usage.prompt_tokens + usage.completion_tokens,
        candidates_token_count=usage.completion_tokens - thought,
        thoughts_token_count=thought or UNSET,
        cached_content_token_count=usage.cached_tokens or UNSET,
    )
