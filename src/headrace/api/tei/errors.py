"""Errors as text-embeddings-inference (TEI) gives them: a text and its kind."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.api.http.call_context import HttpCall
from headrace.errors import HeadraceError

SURFACE: Final = "/embed"
PIPELINES: Final = (
    *("feature-extraction", "sentence-similarity"),
    *("text-classification", "zero-shot-classification", "token-classification"),
)
PATHS: Final = (
    *(SURFACE, "/embed_sparse", "/embed_all", "/similarity", "/predict", "/decode", "/info", "/"),
    *(f"/pipeline/{task}" for task in PIPELINES),
)
"""Paths of TEI and of the hub's client alone, as a whole."""
SHARED_PATHS: Final = ("/rerank", "/tokenize")
"""Paths that others have, too: errors of TEI's bodies are TEI's once they are read."""


class TeiError(msgspec.Struct, frozen=True):
    """An error reply; `param` and `code` are those of other surfaces."""

    error: str
    error_type: str
    param: str | None = None
    code: str | None = None


def take_surface(call: HttpCall) -> None:
    """The call's body is TEI's: errors are from here on, where the path may be TEI's."""
    if call.path in SHARED_PATHS:
        call.surface = SURFACE


def tei_error(error: HeadraceError, call: HttpCall) -> tuple[int, msgspec.Struct]:
    """The status and the body of an error."""
    kind = {429: "Overloaded", 503: "Unhealthy"}.get(error.status)
    kind = kind or ("Validation" if error.status < 500 else "Backend")
    return error.status, TeiError(error.message, kind, error.param, error.code)
