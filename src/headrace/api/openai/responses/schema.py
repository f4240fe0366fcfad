"""The response object, its stream's events, and the other bodies of the Responses API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.openai.responses.annotations import FileCitation
from headrace.api.openai.responses.items import (
    OutputItem,
    OutputText,
    ReasoningText,
)
from headrace.api.openai.schema import ContentLogprob, ParameterWarning

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is not complete."""

    reason: str


class ResponseReasoning(msgspec.Struct, frozen=True):
    """How much reasoning was asked for."""

    effort: str | None = None
    summary: None = None


class TextOptions(msgspec.Struct, frozen=True):
    """What the text had to match."""

    format: dict[str, Any]


class ResponseInputDetails(msgspec.Struct, frozen=True):
    """How much of the input came from the prefix cache, and why not more."""

    cached_tokens: int
    cache_miss_reason: str | None
    cache_write_tokens: int = 0


class ResponseOutputDetails(msgspec.Struct, frozen=True):
    """Parts of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response: what was asked for, and what has come of it. Fields below `status` change as it is made."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoning
    safety_identifier: str | None
    service_tier: str = "default"
    temperature: float
    text: TextOptions
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    user: str | None
    store: bool
    status: Status
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    seed: int | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed response; `type` says which of the fields it has."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: list[ContentLogprob] | UnsetType = UNSET
    annotation: FileCitation | UnsetType = UNSET
    annotation_index: int | UnsetType = UNSET


class DeletedResponse(msgspec.Struct, frozen=True):
    """A response is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ResponseInputTokens(msgspec.Struct, frozen=True):
    """How many tokens a request would put into the model."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ResponseItemList(msgspec.Struct, frozen=True):
    """A page of items."""

    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"
