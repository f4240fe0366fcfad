"""From engine events to a message, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.anthropic.content_blocks import BlockStream, whole_blocks
from headrace.api.anthropic.errors import anthropic_error
from headrace.api.anthropic.schema import (
    AnthropicMessage,
    AnthropicOutputDetails,
    Block,
    BlockEvent,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StreamEvent,
)
from headrace.api.http.call_context import CallContext, call_of
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import StreamedReply
from headrace.api.http.sse import MEDIA_TYPE, sse_event
from headrace.api.openai.output_formatter import AnswerReader
from headrace.api.openai.responder import collect
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import CLIENT_GONE, get_service
from headrace.chat.prompt import ChatPrompt
from headrace.engine.request import ChoiceFinished, Delta, EngineEvent, EngineRequest, RequestFinished, Usage
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageMeta(Struct, frozen=True):
    """What a message has before the model says anything. `hide_thinking`: the caller wants none to read."""

    model: str
    prompt_tokens: int
    warnings: list[ParameterWarning]
    hide_thinking: bool


async def respond(
    http: HttpRequest,
    model: LoadedModel,
    request: EngineRequest,
    conversation: ChatPrompt,
    head: MessageMeta,
    *,
    stream: bool,
) -> Response:
    """Submit `request` and reply; raises what the engine refuses at the door."""
    reader = AnswerReader(None if conversation.plain else conversation.parser())
    if stream:
        writer = MessageWriter(request, head, reader, call_of(http))
        reply = StreamedReply(writer, writer.opening())
        await reply.submit(get_service(http), model, [request], call_of(http))
        return reply
    collector = await collect(http, model, [request])
    if collector is None:
        return Response(status_code=CLIENT_GONE)
    [[choice]], [done] = collector.choices, collector.done
    assert choice.done is not None
    events = [
        event
        for text, tokens in zip(choice.text, choice.token_counts, strict=True)
        for event in reader.feed(text, tokens)
    ]
    last, reason = reader.finish(choice.done.reason)
    blocks, cut = whole_blocks([*events, *last], hide_thinking=head.hide_thinking)
    if cut is not None:
        message = f"the call of {cut} was cut short and has no input: max_tokens or the context was reached"
        head.warnings.append(ParameterWarning("max_tokens", message))
    usage = _usage(done.usage, reader.reasoning_tokens)
    ending = _ending(choice.done, reason, request)
    return json_response(_message(request.request_id, head, blocks, ending, usage))


class MessageWriter:
    """The server-sent events of one message."""

    media_type = MEDIA_TYPE

    def __init__(
        self, request: EngineRequest, head: MessageMeta, reader: AnswerReader, call: CallContext
    ) -> None:
        self._request = request
        self._head = head
        self._reader = reader
        self._call = call
        self._blocks = BlockStream(hide_thinking=head.hide_thinking)
        self._ending = MessageEnd("end_turn", None)
        self._usage = _usage(Usage(head.prompt_tokens, 0, 0), 0)

    def opening(self) -> bytes:
        """The message without content, and a ping: both before the prompt is computed."""
        message = _message(self._request.request_id, self._head, [], None, self._usage)
        return _written(MessageStart(message)) + _written(Ping())

    def events(self, index: int, events: list[EngineEvent]) -> bytes:
        """Events of content blocks; what ends the message is remembered."""
        found: list[BlockEvent] = []
        for event in events:
            if isinstance(event, Delta):
                found += self._blocks.feed(self._reader.feed(event.text, len(event.tokens)))
            elif isinstance(event, ChoiceFinished):
                last, reason = self._reader.finish(event.reason)
                found += [*self._blocks.feed(last), *self._blocks.close()]
                self._ending = _ending(event, reason, self._request)
            elif isinstance(event, RequestFinished):
                self._usage = _usage(event.usage, self._reader.reasoning_tokens)
        return b"".join(map(_written, found))

    def finish(self) -> bytes:
        """Why the message ended, its token counts, and the end."""
        return _written(MessageDelta(self._ending, self._usage)) + _written(MessageStop())

    def failure(self, error: HeadraceError) -> bytes:
        """The event that ends a stream that failed."""
        _, body = anthropic_error(error, self._call)
        return sse_event(body, "error")


def _written(event: StreamEvent) -> bytes:
    return sse_event(event, str(event.__struct_config__.tag))


def _message(
    message_id: str,
    head: MessageMeta,
    blocks: Sequence[Block],
    ending: MessageEnd | None,
    usage: MessageUsage,
) -> AnthropicMessage:
    return AnthropicMessage(
        id=message_id,
        model=head.model,
        content=list(blocks),
        stop_reason=None if ending is None else ending.stop_reason,
        stop_sequence=None if ending is None else ending.stop_sequence,
        usage=usage,
        warnings=head.warnings or UNSET,
    )


def _ending(done: ChoiceFinished, reason: str, request: EngineRequest) -> MessageEnd:
    """A stop sequence is told apart from the model's own end, max_tokens from a context that is full."""
    if isinstance(done.stop, str):
        return MessageEnd("stop_sequence", done.stop)
    if reason == "length" and request.params.max_tokens is None:
        return MessageEnd("model_context_window_exceeded", None)
    return MessageEnd(_REASONS.get(reason, "end_turn"), None)


def _usage(usage: Usage, thinking_tokens: int) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=AnthropicOutputDetails(thinking_tokens),
        cache_read_input_tokens=usage.cached_tokens,
    )
