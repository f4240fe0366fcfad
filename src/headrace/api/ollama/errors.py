"""Errors as Ollama's clients read them: one text."""

from __future__ import annotations

import msgspec

from headrace.api.http.call_context import CallContext
from headrace.errors import HeadraceError


class OllamaError(msgspec.Struct, frozen=True):
    """An error reply, and the line that ends a stream that has failed."""

    error: str


def ollama_error(error: HeadraceError, call: CallContext) -> tuple[int, msgspec.Struct]:
    """The status stays, cause and remedy are the text."""
    return error.status, OllamaError(error.message)
