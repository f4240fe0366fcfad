"""The bodies of Ollama's replies, as msgspec structs. A stream's lines and a whole reply have one shape."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.openai.schema import ContentLogprob, ParameterWarning
from headrace.inference.events import GuardVerdict


class OllamaFunction(msgspec.Struct, frozen=True):
    """The function of a call, with its arguments as an object."""

    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct, frozen=True):
    """A call that the model makes."""

    function: OllamaFunction
    id: str


class OllamaMessage(msgspec.Struct, frozen=True):
    """An answer, or what a line adds to it."""

    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, frozen=True, kw_only=True):
    """What both generating endpoints answer with. Durations are in nanoseconds; `seed` repeats the answer."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    logprobs: list[ContentLogprob] | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET
    guards: list[GuardVerdict] | UnsetType = UNSET


class OllamaGenerate(OllamaLine, frozen=True, kw_only=True):
    """A reply of /api/generate; `context` holds the tokens of prompt and answer."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaChat(OllamaLine, frozen=True, kw_only=True):
    """A reply of /api/chat."""

    message: OllamaMessage


class OllamaDetails(msgspec.Struct, frozen=True):
    """What kind of model it is; texts are empty where nobody knows."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine, under both names that clients read; `remote_host` names the providers of one
    that is answered elsewhere."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    remote_host: str | UnsetType = UNSET


class OllamaTags(msgspec.Struct, frozen=True):
    """The models on this machine."""

    models: list[OllamaModel]


class OllamaRunning(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory. `size_vram` is what of it lies on an accelerator."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcesses(msgspec.Struct, frozen=True):
    """The models in memory."""

    models: list[OllamaRunning]


class OllamaShow(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is. `template` is Jinja, as the checkpoint has it."""

    modified_at: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    parameters: str
    modelfile: str
    license: str | UnsetType = UNSET
    template: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET


class OllamaVersion(msgspec.Struct, frozen=True):
    """The server's version."""

    version: str


class OllamaStatus(msgspec.Struct, frozen=True):
    """How far a pull or a creation is; sizes in bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct, frozen=True):
    """Embeddings of several texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    warnings: list[ParameterWarning] | UnsetType = UNSET


class OllamaEmbedding(msgspec.Struct, frozen=True):
    """The embedding of one text."""

    embedding: list[float]
    warnings: list[ParameterWarning] | UnsetType = UNSET


def timestamp(seconds: float | None = None) -> str:
    """Wall-clock time (None: now) as RFC 3339 in UTC."""
    time = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return time.isoformat().replace("+00:00", "Z")
