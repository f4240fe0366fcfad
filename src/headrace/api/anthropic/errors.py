"""Errors in Anthropic's shape, with its statuses and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext

MESSAGES_PATH: Final = "/v1/messages"
"""What the paths of this surface begin with."""

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Overload is 503 on the other surfaces. A body that came too slowly stays 408: the official client has a
# class for it.
ANTHROPIC_STATUSES: Final[Mapping[int, int]] = {503: 529}


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an error; `details` holds Headrace's own code where there is one."""

    type: str
    message: str
    details: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """An error reply, and the event that ends a stream that failed."""

    error: AnthropicErrorDetail
    request_id: str


def anthropic_error(error: HeadraceError, call: CallContext) -> tuple[int, AnthropicError]:
    """The status and the body that this surface gives an error: overload is 529."""
    status = 504 if error.code == "deadline_exceeded" else ANTHROPIC_STATUSES.get(error.status, error.status)
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    details = {"error_code": error.code} if error.code is not None else msgspec.UNSET
    return status, AnthropicError(AnthropicErrorDetail(kind, error.message, details), call.request_id)
