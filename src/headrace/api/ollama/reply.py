"""From engine events to Ollama's replies: lines of JSON, or all of them as one object."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.disconnect import wait_for_end
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import StreamedReply
from headrace.api.http.openapi import replies
from headrace.api.ollama.delta import OutputDelta, PartReader
from headrace.api.ollama.errors import OllamaError
from headrace.api.ollama.schema import OllamaGenerate, OllamaLine
from headrace.api.openai.logprobs import chat_logprobs
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import CLIENT_GONE, get_service
from headrace.chat.output_parser import OutputParser
from headrace.engine.request import ChoiceFinished, Delta, EngineEvent, EngineRequest, RequestFinished
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

LOG = logging.getLogger("headrace.api")
MEDIA_TYPE = "application/x-ndjson"

_encoder = msgspec.json.Encoder()


def line_of(body: msgspec.Struct) -> bytes:
    """One line of a stream."""
    return _encoder.encode(body) + b"\n"


def line_replies(body: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that streams lines of `body`, or with `stream: false` answers with one."""
    found = replies(body)
    text = f"Unless stream is false, a line for each {body.__name__} (or one error, then nothing)."
    found[200]["content"][MEDIA_TYPE] = {"schema": {"type": "string", "description": text}}
    return found


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """What an answer is made from. `shape` gives a part the form of its endpoint; `before_s` is the time
    from the request's arrival to its submission, of which `load_s` went to the model's loading.
    """

    request: EngineRequest
    parser: OutputParser | None
    shape: Callable[[OutputDelta], OllamaLine]
    before_s: float
    load_s: float
    warnings: list[ParameterWarning] = field(default_factory=list[ParameterWarning])
    gives_context: bool = False


class Lines:
    """Turns the events of one request into lines; or keeps them all for one object."""

    media_type = MEDIA_TYPE

    def __init__(self, model: LoadedModel, asked: PreparedRequest) -> None:
        self._tokenizer = model.tokenizer
        self._asked = asked
        self._reader = PartReader(asked.parser)
        self._kept = OutputDelta()
        self._tokens: list[int] = []
        self._ended: ChoiceFinished | None = None
        self._done: RequestFinished | None = None

    def events(self, index: int, events: list[EngineEvent]) -> bytes:
        """A line for what the events add, if that is anything."""
        part = self._part(events)
        return line_of(self._asked.shape(part)) if part else b""

    def keep(self, index: int, events: list[EngineEvent]) -> None:
        """Take the events of a reply that is not streamed."""
        self._kept.add(self._part(events))

    def whole(self) -> OllamaLine:
        """The reply that is not streamed."""
        return self._last(self._kept)

    def finish(self) -> bytes:
        """The line that ends a stream."""
        return line_of(self._last(OutputDelta()))

    def failure(self, error: HeadraceError) -> bytes:
        """The line that ends a stream that has failed."""
        return line_of(OllamaError(error.message))

    def _part(self, events: list[EngineEvent]) -> OutputDelta:
        part = OutputDelta()
        for event in events:
            if isinstance(event, Delta):
                part.add(self._reader.feed(event.text))
                part.logprobs += chat_logprobs(self._tokenizer, event.logprobs).content
                self._tokens += event.tokens
            elif isinstance(event, ChoiceFinished):
                part.add(self._reader.finish(event.reason))
                self._ended = event
            elif isinstance(event, RequestFinished):
                self._done = event
        return part

    def _last(self, part: OutputDelta) -> OllamaLine:
        """`part` with the reason of the end, the counts and the durations."""
        assert self._ended is not None and self._done is not None
        asked, usage, timing = self._asked, self._done.usage, self._done.timing
        warnings = [*asked.warnings, *self._cut_calls()]
        line = msgspec.structs.replace(
            asked.shape(part),
            done=True,
            done_reason=self._ended.reason,
            total_duration=nanoseconds(asked.before_s + timing.total_s),
            load_duration=nanoseconds(asked.load_s),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=nanoseconds(timing.first_token_s - timing.queue_s),
            eval_count=usage.completion_tokens,
            eval_duration=nanoseconds(timing.total_s - timing.first_token_s),
            seed=self._done.seed,
            warnings=warnings or UNSET,
        )
        if asked.gives_context and isinstance(line, OllamaGenerate):
            return msgspec.structs.replace(line, context=[*asked.request.prompt, *self._tokens])
        return line

    def _cut_calls(self) -> list[ParameterWarning]:
        return [
            ParameterWarning(
                "tools",
                f"the answer ended within a call of {name}, which is left out: allow more num_predict",
            )
            for name in self._reader.cut_calls
        ]


async def respond(http: HttpRequest, model: LoadedModel, asked: PreparedRequest, *, stream: bool) -> Response:
    """Submit the request and reply; raises what the engine refuses at the door."""
    service, call = get_service(http), call_of(http)
    service.meter.warnings.update(warning.param for warning in asked.warnings)
    lines = Lines(model, asked)
    if stream:
        reply = StreamedReply(lines)
        await reply.submit(service, model, [asked.request], call)
        return reply
    generation = await service.start(model, [asked.request], lines.keep, call)
    if not await wait_for_end(http, generation):
        LOG.info("%s: the client left before the reply", asked.request.request_id)
        return Response(status_code=CLIENT_GONE)
    return json_response(lines.whole())


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
