"""Bodies of Anthropic's replies: messages, and the events of streamed ones; models; batches."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.inference.events import ParameterWarning


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text for the user."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning; `signature` is a digest of it that is never checked."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class AnthropicOutputDetails(msgspec.Struct, frozen=True):
    """Parts of the output's tokens."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts; of the prompt, tokens from the prefix cache are counted separately."""

    input_tokens: int
    output_tokens: int
    output_tokens_details: AnthropicOutputDetails
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
    """The number of tokens of a prompt."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The message, still without content."""

    message: AnthropicMessage


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Keeps the connection open."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature that ends a block of reasoning."""

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
    """A block ends, complete or cut short."""

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
    """The end of the stream."""


StreamEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop
STREAM_EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)


class AnthropicModel(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    """A served model; its limits are null until it has been loaded."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: str = "active"


class AnthropicModelList(msgspec.Struct, frozen=True):
    """A page of the served models."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a batch by outcome; until the batch ends all are `processing`."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_batch"):
    """A batch of messages."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    cancel_initiated_at: str | None
    ended_at: str | None
    results_url: str | None
    archived_at: None = None


class MessageBatchList(msgspec.Struct, frozen=True):
    """A page of batches."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchSucceeded(msgspec.Struct, frozen=True, tag_field="type", tag="succeeded"):
    """A message that was answered."""

    message: msgspec.Raw


class BatchErrored(msgspec.Struct, frozen=True, tag_field="type", tag="errored"):
    """A message that was refused or failed."""

    error: msgspec.Raw


class BatchCanceled(msgspec.Struct, frozen=True, tag_field="type", tag="canceled"):
    """The batch was cancelled before this message ran."""


class BatchExpired(msgspec.Struct, frozen=True, tag_field="type", tag="expired"):
    """The batch's time was over before this message ran."""


class BatchResult(msgspec.Struct, frozen=True):
    """A line of a batch's results."""

    custom_id: str
    result: BatchSucceeded | BatchErrored | BatchCanceled | BatchExpired
