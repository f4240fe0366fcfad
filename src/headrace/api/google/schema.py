"""Bodies of replies in Google's shape."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from headrace.inference.events import ParameterWarning

FinishReason = Literal["STOP", "MAX_TOKENS", "SAFETY"]


class GoogleCalled(Struct, frozen=True):
    """A call with all its arguments."""

    id: str
    name: str
    args: dict[str, Any]


class AnswerPart(Struct, frozen=True, rename="camel"):
    """A text, a thought or a call."""

    text: str | UnsetType = UNSET
    thought: bool | UnsetType = UNSET
    function_call: GoogleCalled | UnsetType = UNSET


class AnswerContent(Struct, frozen=True):
    """The turn of the model."""

    parts: list[AnswerPart]
    role: str = "model"


class TokenCandidate(Struct, frozen=True, rename="camel"):
    """A token and its natural-log probability."""

    token: str
    token_id: int
    log_probability: float


class TopTokens(Struct, frozen=True):
    """The most likely tokens at a place, best first."""

    candidates: list[TokenCandidate]


class LogprobsResult(Struct, frozen=True, rename="camel"):
    """The tokens of an answer and those that were likely."""

    chosen_candidates: list[TokenCandidate]
    top_candidates: list[TopTokens]
    log_probability_sum: float


class Candidate(Struct, frozen=True, rename="camel"):
    """A choice, or more of it."""

    index: int
    content: AnswerContent | UnsetType = UNSET
    finish_reason: FinishReason | UnsetType = UNSET
    logprobs_result: LogprobsResult | UnsetType = UNSET
    avg_logprobs: float | UnsetType = UNSET


class UsageMetadata(Struct, frozen=True, rename="camel"):
    """Tokens. Those of the candidates leave out thoughts; the prompt's include what was cached."""

    prompt_token_count: int
    total_token_count: int
    candidates_token_count: int | UnsetType = UNSET
    thoughts_token_count: int | UnsetType = UNSET
    cached_content_token_count: int | UnsetType = UNSET


class GenerateReply(Struct, frozen=True, rename="camel"):
    """A reply, and an event of a stream."""

    candidates: list[Candidate]
    model_version: str
    response_id: str
    usage_metadata: UsageMetadata | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET


class TokenCount(Struct, frozen=True, rename="camel"):
    """The tokens of a prompt."""

    total_tokens: int


class Values(Struct, frozen=True):
    """A vector."""

    values: list[float]


class EmbedReply(Struct, frozen=True):
    """The vector of a text."""

    embedding: Values


class BatchEmbedReply(Struct, frozen=True):
    """The vectors of texts, in their order."""

    embeddings: list[Values]


class GoogleModel(Struct, frozen=True, rename="camel"):
    """A served model. Limits that are not known before it is loaded are absent."""

    name: str
    base_model_id: str
    version: str
    display_name: str
    supported_generation_methods: list[str]
    input_token_limit: int | UnsetType = UNSET
    output_token_limit: int | UnsetType = UNSET


class GoogleModelList(Struct, frozen=True, rename="camel"):
    """A page of models."""

    models: list[GoogleModel] = field(default_factory=list[GoogleModel])
    next_page_token: str | UnsetType = UNSET
