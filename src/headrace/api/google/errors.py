"""Errors in Google's shape (google.rpc.Status as its REST API writes it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext

PATHS: Final = "/v1beta/"
"""What the paths of this surface begin with."""
SHARED_PATH: Final = "/v1/models"
"""Version 1 of the same, a path of OpenAI's, too."""
CLIENT_HEADERS: Final = ("x-goog-api-key", "x-goog-api-client")
"""By which its clients are known there."""

_STATUSES: Final[Mapping[int, str]] = {
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GoogleReason(msgspec.Struct, frozen=True):
    """Headrace's own code of an error, and the parameter that it names."""

    reason: str
    metadata: dict[str, str]
    domain: str = "headrace"
    type: str = msgspec.field(default="type.googleapis.com/google.rpc.ErrorInfo", name="@type")


class GoogleErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an error."""

    code: int
    message: str
    status: str
    details: tuple[GoogleReason, ...] = ()


class GoogleError(msgspec.Struct, frozen=True):
    """An error reply, and the event that ends a stream that failed."""

    error: GoogleErrorDetail


def google_error(error: HeadraceError, call: CallContext) -> tuple[int, GoogleError]:
    """The status and the body of an error."""
    kind = _STATUSES.get(error.status) or ("INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    metadata = {"request_id": call.request_id}
    if error.param is not None:
        metadata["param"] = error.param
    reason = GoogleReason((error.code or error.kind).upper(), metadata)
    return error.status, GoogleError(GoogleErrorDetail(error.status, error.message, kind, (reason,)))
