"""From inference events to a message, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct

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
from headrace.api.http.event_stream import MEDIA_TYPE, sse_event
from headrace.engine.request import Usage
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, OutputDelta, OutputFinished, Prepared, PromptFinished
from headrace.inference.result import ResultCollector

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessageReply(Struct, frozen=True):
    """The format of a message. With `hide_thinking`, blocks of thinking have no text."""

    id: str
    hide_thinking: bool

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> AnthropicMessage:
        """The reply that is not streamed."""
        [prompt] = result.prompts
        [choice] = prompt.choices
        blocks, cut = whole_blocks(choice.parts, hide_thinking=self.hide_thinking)
        if cut is not None:
            call.warn(
                "max_tokens",
                f"the call of {cut} was cut short and has no input: max_tokens or the context was reached",
            )
        usage = _usage(prompt.ended.usage, choice.ended.reasoning_tokens)
        return self.message(prepared, call, blocks, _ending(choice.ended, prepared), usage)

    def stream(self, prepared: Prepared, call: CallContext) -> MessageWriter:
        """The writer of a streamed reply."""
        return MessageWriter(self, prepared, call)

    def message(
        self,
        prepared: Prepared,
        call: CallContext,
        blocks: list[Block],
        ending: MessageEnd | None,
        usage: MessageUsage,
    ) -> AnthropicMessage:
        """A message, with no `ending` while it is still being written."""
        return AnthropicMessage(
            id=self.id,
            model=prepared.model,
            content=blocks,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=usage,
            warnings=call.warnings or UNSET,
        )


class MessageWriter:
    """The server-sent events of one message."""

    media_type = MEDIA_TYPE

    def __init__(self, reply: MessageReply, prepared: Prepared, call: CallContext) -> None:
        self._reply, self._prepared, self._call = reply, prepared, call
        self._blocks = BlockStream(hide_thinking=reply.hide_thinking)
        self._ending = MessageEnd("end_turn", None)
        self._reasoning_tokens = 0
        prompt = prepared.prompts[0]
        self._usage = _usage(Usage(len(prompt.tokens) or prompt.estimated_tokens, 0, 0), 0)

    def opening(self) -> bytes:
        """The message without content, and a ping: both before the prompt is computed."""
        message = self._reply.message(self._prepared, self._call, [], None, self._usage)
        return _written(MessageStart(message)) + _written(Ping())

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """Events of content blocks; what ends the message is kept for `finish`."""
        found: list[BlockEvent] = []
        for event in events:
            if isinstance(event, OutputDelta):
                found += self._blocks.feed(event.parts)
            elif isinstance(event, OutputFinished):
                found += [*self._blocks.feed(event.parts), *self._blocks.close()]
                self._ending = _ending(event, self._prepared)
                self._reasoning_tokens = event.reasoning_tokens
            elif isinstance(event, PromptFinished):
                self._usage = _usage(event.usage, self._reasoning_tokens)
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


def _ending(ended: OutputFinished, prepared: Prepared) -> MessageEnd:
    """A stop sequence differs from the model's own end, and max_tokens from a context that is full."""
    if isinstance(ended.stop, str):
        return MessageEnd("stop_sequence", ended.stop)
    bounded = prepared.params is not None and prepared.params.max_tokens is not None
    if ended.reason == "length" and not bounded:
        return MessageEnd("model_context_window_exceeded", None)
    return MessageEnd(_REASONS.get(ended.reason, "end_turn"), None)


def _usage(usage: Usage, thinking_tokens: int) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=AnthropicOutputDetails(thinking_tokens),
        cache_read_input_tokens=usage.cached_tokens,
    )
