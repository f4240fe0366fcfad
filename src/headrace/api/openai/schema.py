"""The bodies of replies and of streamed chunks, as msgspec structs that encode in microseconds."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.inference.events import GuardVerdict, ParameterWarning


class PromptDetails(msgspec.Struct, frozen=True):
    """How much of the prompt came from the prefix cache, and why not more."""

    cached_tokens: int
    cache_miss_reason: str | None


class CompletionDetails(msgspec.Struct, frozen=True):
    """Parts of the completion's tokens that OpenAI reports apart; `tokens_saved` is how many more the choices
    might have had that a vote or a ranking stopped: a bound, by `max_tokens`."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    tokens_saved: int | UnsetType = UNSET


class UsageBody(msgspec.Struct, frozen=True):
    """Token counts of a reply; in a chunk, those of its choice so far, without details."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative of a chat token."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct, frozen=True):
    """One chat token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the shape of chat completions."""

    content: list[ContentLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the shape of completions."""

    tokens: list[str]
    token_logprobs: list[float | None]  # null for the first token of a prompt that is repeated
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """How likely a token of the prompt was, in vLLM's shape; of `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobList = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt itself and the likeliest instead, by token id; null for the first."""


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a call; `arguments` is JSON text, in a chunk the next part of it."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to the call at `index`; the first chunk of a call names it."""

    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class MessageCall(msgspec.Struct, frozen=True):
    """A whole call."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to a chat message. Reasoning goes by both names that clients read."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a chat chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class ScalingNote(msgspec.Struct, frozen=True):
    """How a choice came to be given out. `votes` are those counted until it was decided, by answer; `score`
    is what `best_of` ranked by; `budget` names what ended choices before their time."""

    answer: str | UnsetType | None = UNSET
    votes: dict[str, int] | UnsetType = UNSET
    score: float | UnsetType = UNSET
    budget: str | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, whole or a chunk of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobList | UnsetType = UNSET
    scaling: ScalingNote | UnsetType = UNSET


class Timings(msgspec.Struct, frozen=True):
    """Times of a reply, as llama.cpp gives them. `cache_n` tokens of the prompt were there, `prompt_n` were
    computed; the rate of generation leaves out the first token, which comes with the prompt."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class ShownPrompt(msgspec.Struct, frozen=True):
    """The prompt as the model reads it, with special tokens."""

    prompt: str


class CompletionChunkBody(msgspec.Struct, frozen=True):
    """One streamed chunk of either endpoint."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice | TextChoice | msgspec.Raw]
    usage: UsageBody | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET
    guards: list[GuardVerdict] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    system_fingerprint: str | None = None
    shown_prompt: ShownPrompt | UnsetType = msgspec.field(default=UNSET, name="__verbose")


class ChatMessage(msgspec.Struct, frozen=True):
    """The answer of a chat; `content` is null where it is nothing but calls."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One whole choice of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    scaling: ScalingNote | UnsetType = UNSET


class Reply(msgspec.Struct, frozen=True):
    """The whole reply of either endpoint; `seed` repeats it, where its prompts have one in common."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice | TextChoice]
    usage: UsageBody
    service_tier: str | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET
    guards: list[GuardVerdict] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobList | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    system_fingerprint: str | None = None
    shown_prompt: ShownPrompt | UnsetType = msgspec.field(default=UNSET, name="__verbose")


class ChatReply(Reply, frozen=True):
    """A whole chat completion."""

    choices: list[ChatChoice]  # type: ignore[assignment]  # a schema has no place for the union


class TextReply(Reply, frozen=True):
    """A whole completion."""

    choices: list[TextChoice]  # type: ignore[assignment]


class ChatChunk(CompletionChunkBody, frozen=True):
    """A streamed part of a chat completion."""

    choices: list[ChatChunkChoice]  # type: ignore[assignment]


class TextChunk(CompletionChunkBody, frozen=True):
    """A streamed part of a completion."""

    choices: list[TextChoice]  # type: ignore[assignment]
