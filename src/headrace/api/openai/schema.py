"""The bodies of replies and of streamed chunks, as msgspec structs that encode in microseconds."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.inference.batches.batch_files import BatchUsage
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
    content: str | UnsetType | None = UNSET
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
    choices: list[ChatChunkChoice | TextChoice]
    usage: UsageBody | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET
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


ModelState = Literal["unloaded", "loading", "loaded", "failed"]


class ModelCard(msgspec.Struct, frozen=True):
    """A served model. What is only known once it is loaded is null before; `in_use` counts requests that keep
    it in memory, `failure` says what went wrong, `restarts` counts dead worker processes."""

    id: str
    created: int
    context_length: int | None
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "headrace"
    state: ModelState = "loaded"
    aliases: tuple[str, ...] = ()
    memory_bytes: int | None = None
    in_use: int = 0
    restarts: int = 0
    failure: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The served models."""

    data: list[ModelCard]
    object: str = "list"


class HealthBody(msgspec.Struct, frozen=True):
    """Whether the engines' loops make progress, with the sums of the numbers by which that was judged, and
    the state of each model."""

    status: str
    running: int
    waiting: int
    steps: int
    free_pages: int
    page_count: int
    models: dict[str, str] = {}


class ReadyBody(msgspec.Struct, frozen=True):
    """Whether requests are taken."""

    status: str
    model: str


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file without its content."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True):
    """A page of files; the next begins after `last_id`."""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(msgspec.Struct, frozen=True):
    """A file that is gone."""

    id: str
    deleted: Literal[True] = True
    object: Literal["file"] = "file"


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines of a batch: all, those that have run well, and those with an error."""

    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    in_progress_at: int
    expires_at: int
    cancelling_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    expired_at: int | None
    cancelled_at: int | None
    output_file_id: str | None
    error_file_id: str | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: dict[str, str] | None
    errors: None = None
    failed_at: None = None
    object: Literal["batch"] = "batch"


class BatchList(msgspec.Struct, frozen=True):
    """A page of batches; the next begins after `last_id`."""

    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text, and as many as the model's context holds."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenPiece(msgspec.Struct, frozen=True):
    """A token and its text; its bytes where they are no UTF-8."""

    id: int
    piece: str | list[int]


class LlamaTokens(msgspec.Struct, frozen=True):
    """The tokens of a text as llama.cpp gives them, with `with_pieces` each with its text."""

    tokens: list[int | TokenPiece]


class DecodedText(msgspec.Struct, frozen=True):
    """The text of tokens, under vLLM's name and llama.cpp's."""

    prompt: str
    content: str


class PromptText(msgspec.Struct, frozen=True):
    """A text for a model."""

    prompt: str


class EmbeddingObject(msgspec.Struct, frozen=True):
    """The vector of the text at `index`: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """The vectors of a request's texts, in their order."""

    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET
