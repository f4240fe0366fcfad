"""Bodies of this surface: the message, and the events of a streamed one."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.wire import ParameterWarning


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text for the user."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought; `signature` is a digest of it that nothing checks."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(msgspec.Struct, frozen=True):
    """Parts of the output's tokens."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts: the prompt's are those computed and those that the prefix cache had."""

    input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    service_tier: str = "standard"


class AnthropicMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """The whole reply."""

    id: str
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    role: str = "assistant"
    warnings: list[ParameterWarning] | UnsetType = UNSET


class AnthropicTokenCount(msgspec.Struct, frozen=True):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The message, with nothing in it yet."""

    message: AnthropicMessage


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing, but the connection lives."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block opens."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of what the model thinks."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """What closes a block of thinking."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON text."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete, or as far as it came."""

    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop


class MessageEnd(msgspec.Struct, frozen=True):
    """Why the message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the message, and its token counts."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """Nothing follows."""


StreamEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop
STREAM_EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)


class AnthropicModel(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    """A served model."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: str = "active"


class AnthropicModelList(msgspec.Struct, frozen=True):
    """A page of the served models."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool
