"""Errors as llama.cpp's server gives them: the status in the body, and types of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.api.http.call_context import HttpCall
from headrace.errors import ContextLengthExceeded, HeadraceError, ModelLoading

PATHS: Final = ("/completion", "/chat/", "/infill", "/embedding", "/props", "/slots", "/models")
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_COUNT = re.compile(r"\d[\d,]*")


class LlamaErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inside of an error. `reason` is the code that other surfaces give; of a prompt that is too long
    there are its length and the limit."""

    code: int
    message: str
    type: str
    param: str | None = None
    reason: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class LlamaError(msgspec.Struct, frozen=True):
    """An error reply, and the event that ends a stream that has failed."""

    error: LlamaErrorDetail


def llama_error(error: HeadraceError, call: HttpCall) -> tuple[int, msgspec.Struct]:
    """The status and the body of an error."""
    return error.status, llama_error_body(error)


def llama_error_body(error: HeadraceError) -> LlamaError:
    """The body of an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    message = "Loading model" if isinstance(error, ModelLoading) else error.message
    tokens = context = None
    if isinstance(error, ContextLengthExceeded):
        kind = "exceed_context_size_error"
        tokens, context = error.prompt_tokens or None, error.context_length or None
        message = f"the request exceeds the available context size: {message}"
    return LlamaError(LlamaErrorDetail(error.status, message, kind, error.param, error.code, tokens, context))
