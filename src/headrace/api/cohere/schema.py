"""Bodies of Cohere's replies."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from headrace.inference.call_context import CallContext


class ApiVersion(Struct, frozen=True):
    """Which of Cohere's versions the reply follows."""

    version: str


class CohereMeta(Struct, frozen=True):
    """What Cohere's clients read of a reply besides its content."""

    api_version: ApiVersion
    billed_units: dict[str, int]
    tokens: dict[str, int] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


def meta_of(call: CallContext, version: str, **units: int) -> CohereMeta:
    """The tokens and warnings of a call; `units` are what Cohere would bill."""
    count = sum(one.prompt_tokens for one in call.usages)
    said = [one.message for one in call.warnings]
    return CohereMeta(
        ApiVersion(version), units or {"input_tokens": count}, {"input_tokens": count}, said or UNSET
    )


class VectorsByType(Struct, frozen=True, rename={"float_": "float"}):
    """The vectors in each type that was asked for; `base64` is of little-endian float32."""

    float_: list[list[float]] | UnsetType = UNSET
    int8: list[list[int]] | UnsetType = UNSET
    uint8: list[list[int]] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class CohereEmbeddings(Struct, frozen=True):
    """Vectors by type, in the order of the texts."""

    id: str
    embeddings: VectorsByType
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class CohereFloats(Struct, frozen=True):
    """Vectors in the order of the texts, as v1 gives them where no types are asked for."""

    id: str
    embeddings: list[list[float]]
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_floats"] = "embeddings_floats"


class LabelConfidence(Struct, frozen=True):
    """How likely a label is."""

    confidence: float


class ClassifiedInput(Struct, frozen=True):
    """The likeliest label of an input, and all labels with their confidence."""

    id: str
    input: str
    prediction: str
    predictions: list[str]
    confidence: float
    confidences: list[float]
    labels: dict[str, LabelConfidence]
    classification_type: Literal["single-label", "multi-label"] = "single-label"


class CohereClassifications(Struct, frozen=True):
    """The inputs, in their order."""

    id: str
    classifications: list[ClassifiedInput]
    meta: CohereMeta
