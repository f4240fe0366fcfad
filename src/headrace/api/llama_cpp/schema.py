"""Bodies of llama.cpp's replies."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.http.endpoint import Content
from headrace.api.openai.schema import Timings
from headrace.inference.events import ParameterWarning


def listed(kind: type[msgspec.Struct], *, also_alone: bool = False) -> Content:
    """A reply that is a list of `kind`, in the OpenAPI document; `also_alone`: or one, or fields of one."""
    found = {"type": "array", "items": {"$ref": f"#/components/schemas/{kind.__name__}"}}
    return Content("application/json", {"type": ["object", "array"]} if also_alone else found, (kind,))


StopType = Literal["none", "eos", "limit", "word"]


class TopToken(msgspec.Struct, frozen=True):
    """A token that was among the likeliest, with its natural-log probability before truncation."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbability(TopToken, frozen=True):
    """A token of the answer, and those that were likeliest in its place."""

    top_logprobs: list[TopToken]


class LlamaChunk(msgspec.Struct, frozen=True):
    """An event of a streamed completion; the last one is a LlamaCompletion."""

    index: int
    content: str
    tokens: list[int]
    tokens_predicted: int
    tokens_evaluated: int
    stop: Literal[False] = False
    id_slot: int = -1
    completion_probabilities: list[TokenProbability] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class LlamaCompletion(msgspec.Struct, frozen=True):
    """A completion. `tokens_cached` of the `tokens_evaluated` tokens of the prompt were there already;
    `truncated`: it ended because the context was full."""

    index: int
    content: str
    tokens: list[int]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings
    stop: Literal[True] = True
    id_slot: int = -1
    completion_probabilities: list[TokenProbability] | UnsetType = UNSET
    system_fingerprint: str | None = None
    warnings: list[ParameterWarning] | UnsetType = UNSET


class DefaultSettings(msgspec.Struct, frozen=True):
    """What holds for a request that says nothing else."""

    n_ctx: int
    params: dict[str, Any]
    id: int = 0
    id_task: int = -1
    speculative: bool = False
    is_processing: bool = False


class Modalities(msgspec.Struct, frozen=True):
    """What models read besides text."""

    vision: bool = False
    audio: bool = False


class Props(msgspec.Struct, frozen=True):
    """Properties of the server and of a model. `model_path` is the name of its file or folder; `is_sleeping`:
    it is unloaded until it is used again."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    modalities: Modalities = Modalities()
    is_sleeping: bool = False


class Slot(msgspec.Struct, frozen=True):
    """A place for a running sequence. Sequences are bound to none: as many are shown as busy as run."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool = False


class LlamaEmbedding(msgspec.Struct, frozen=True):
    """The vectors of the text at `index`: one, in a list."""

    index: int
    embedding: list[list[float]]


class InputTokens(msgspec.Struct, frozen=True):
    """How many tokens a conversation has."""

    input_tokens: int
    object: str = "response.input_tokens"
