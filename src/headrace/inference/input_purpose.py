"""What inputs of an embedder are for, in the words of Cohere, Voyage, Jina and Google, and the prompts of
models that stand for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from headrace.errors import InvalidRequest

_QUERY: Final = (
    "query",
    "search_query",
    "retrieval.query",
    "Retrieval-query",
    "web_search_query",
    "s2p_query",
)
_DOCUMENT: Final = (
    "document",
    "passage",
    "search_document",
    "retrieval.passage",
    "corpus",
    "Retrieval-document",
)
_CLASSIFICATION: Final = ("classification", "Classification")
_CLUSTERING: Final = ("clustering", "Clustering", "separation")
_MATCHING: Final = ("text-matching", "similarity", "STS", "s2s_query")

INPUT_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "query": _QUERY,
    "search_query": _QUERY,
    "document": _DOCUMENT,
    "search_document": _DOCUMENT,
    "classification": _CLASSIFICATION,
    "clustering": _CLUSTERING,
}
"""`input_type` of Voyage and Cohere, and the names that checkpoints give the prompts for it."""
JINA_TASKS: Final[Mapping[str, Sequence[str]]] = {
    "retrieval.query": _QUERY,
    "retrieval.passage": _DOCUMENT,
    "classification": _CLASSIFICATION,
    "separation": _CLUSTERING,
    "text-matching": _MATCHING,
}
"""`task` of Jina."""
GOOGLE_TASKS: Final[Mapping[str, Sequence[str]]] = {
    "RETRIEVAL_QUERY": _QUERY,
    "QUESTION_ANSWERING": _QUERY,
    "FACT_VERIFICATION": _QUERY,
    "CODE_RETRIEVAL_QUERY": _QUERY,
    "RETRIEVAL_DOCUMENT": _DOCUMENT,
    "SEMANTIC_SIMILARITY": _MATCHING,
    "CLASSIFICATION": _CLASSIFICATION,
    "CLUSTERING": _CLUSTERING,
}
"""`taskType` of Google."""


class InputPurpose(Struct, frozen=True):
    """The field `param` asked for `value`; a model has it if it has one of these `prompts`."""

    param: str
    value: str
    prompts: tuple[str, ...]


def read_purpose(param: str, value: str | None, known: Mapping[str, Sequence[str]]) -> InputPurpose | None:
    """What a field says that inputs are for, None where it is not given. InvalidRequest for an unknown
    value."""
    if value is None:
        return None
    if value not in known:
        raise InvalidRequest(
            f"{param} is {value[:60]!r}, it must be one of {', '.join(known)}",
            param=param,
            code="invalid_value",
        )
    return InputPurpose(param, value, tuple(dict.fromkeys((value, *known[value]))))
