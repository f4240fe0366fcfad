"""From inference events to Ollama's replies: lines of JSON, or all of them as one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from headrace.api.http.endpoint import Content
from headrace.api.http.errors import json_response
from headrace.api.ollama.delta import OllamaDelta, PartReader
from headrace.api.ollama.errors import OllamaError
from headrace.api.ollama.schema import OllamaGenerate, OllamaLine
from headrace.api.openai.logprobs import chat_logprobs
from headrace.chat.tool_formats.events import AnswerEvent
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    ParameterWarning,
    Prepared,
    PromptFinished,
    TokenText,
)
from headrace.inference.result import ResultCollector

MEDIA_TYPE = "application/x-ndjson"

_encoder = msgspec.json.Encoder()


def line_of(body: msgspec.Struct) -> bytes:
    """One line of a stream."""
    return _encoder.encode(body) + b"\n"


def lines_of(body: type[msgspec.Struct]) -> tuple[Content]:
    """A stream of lines of `body`, in the OpenAPI document."""
    text = f"Unless stream is false, a line for each {body.__name__} (or one error, then nothing)."
    return (Content(MEDIA_TYPE, {"type": "string", "description": text}),)


class OllamaReply:
    """The format of an answer, whole or line by line. `shape` gives a part the form of its endpoint.

    `gives_context`: the tokens of the conversation come back with the answer.
    """

    def __init__(self, shape: Callable[[OllamaDelta], OllamaLine], *, gives_context: bool = False) -> None:
        self._shape = shape
        self._gives_context = gives_context

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> OllamaLine:
        """The reply that is not streamed."""
        lines = self.stream(prepared, call)
        [prompt] = result.prompts
        [choice] = prompt.choices
        part = lines.read(choice.parts, choice.logprobs)
        lines.tokens = choice.tokens
        lines.ended, lines.finished = choice.ended, prompt.ended
        return lines.last(part)

    def stream(self, prepared: Prepared, call: CallContext) -> Lines:
        """The writer of a streamed reply."""
        return Lines(self._shape, prepared, call, gives_context=self._gives_context)


class Lines:
    """The lines of one answer."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        shape: Callable[[OllamaDelta], OllamaLine],
        prepared: Prepared,
        call: CallContext,
        *,
        gives_context: bool,
    ) -> None:
        self._shape, self._prepared, self._call = shape, prepared, call
        self._gives_context = gives_context
        self._reader = PartReader()
        self._before_s = time.monotonic() - call.arrival_s
        self.tokens: list[int] = []
        self.ended: OutputFinished | None = None
        self.finished: PromptFinished | None = None

    def opening(self) -> bytes:
        """Nothing: the first line comes with the first text."""
        return b""

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """A line for each event that adds something."""
        written = b""
        for event in events:
            part = OllamaDelta()
            if isinstance(event, OutputDelta):
                part = self.read(event.parts, event.logprobs)
                self.tokens += event.tokens
            elif isinstance(event, OutputFinished):
                part = self.read(event.parts, ())
                self.ended = event
            elif isinstance(event, PromptFinished):
                self.finished = event
            if part:
                written += line_of(self._shape(part))
        return written

    def finish(self) -> bytes:
        """The line that ends a stream."""
        return line_of(self.last(OllamaDelta()))

    def failure(self, error: HeadraceError) -> bytes:
        """The line that ends a stream that has failed."""
        return line_of(OllamaError(error.message))

    def read(self, parts: Sequence[AnswerEvent], logprobs: Sequence[TokenText]) -> OllamaDelta:
        """What parts and log probabilities add."""
        part = self._reader.read(parts)
        part.logprobs += chat_logprobs(logprobs).content
        return part

    def last(self, part: OllamaDelta) -> OllamaLine:
        """`part` with the reason of the end, the counts and the durations."""
        assert self.ended is not None and self.finished is not None
        usage, timing = self.finished.usage, self.finished.timing
        warnings = [*self._call.warnings, *self._cut_calls()]
        is_filtered = self.ended.reason == "content_filter"
        line = msgspec.structs.replace(
            self._shape(part),
            done=True,
            done_reason="content_filter" if is_filtered else self.ended.text_reason,
            total_duration=nanoseconds(self._before_s + timing.total_s),
            load_duration=nanoseconds(self._call.load_s),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=nanoseconds(timing.first_token_s - timing.queue_s),
            eval_count=usage.completion_tokens,
            eval_duration=nanoseconds(timing.total_s - timing.first_token_s),
            seed=UNSET if self.finished.seed is None else self.finished.seed,
            warnings=warnings or UNSET,
            guards=self._call.verdicts or UNSET,
        )
        tokens = self._prepared.prompts[0].tokens  # none of a remote model
        if self._gives_context and tokens and isinstance(line, OllamaGenerate):
            return msgspec.structs.replace(line, context=[*tokens, *self.tokens])
        return line

    def _cut_calls(self) -> list[ParameterWarning]:
        return [
            ParameterWarning(
                "tools",
                f"the answer ended within a call of {name}, which is left out: allow more num_predict",
            )
            for name in self._reader.cut_calls
        ]


def without_answer(
    line: OllamaLine, load_s: float, warnings: list[ParameterWarning], *, unloads: bool
) -> Response:
    """The reply to a request that only loads or unloads a model."""
    return json_response(
        msgspec.structs.replace(
            line,
            done=True,
            done_reason="unload" if unloads else "load",
            load_duration=nanoseconds(load_s),
            warnings=warnings or UNSET,
        )
    )


def nanoseconds(seconds: float) -> int:
    """Ollama's unit of time."""
    return round(seconds * 1e9)
