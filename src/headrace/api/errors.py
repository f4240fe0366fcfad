"""Errors of the HTTP surface in OpenAI's shape: four keys always, whatever went wrong."""

from __future__ import annotations

import math

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.call import call_of
from headrace.errors import HeadraceError, InvalidRequest, Overloaded


class Unauthorized(InvalidRequest):
    """The key is missing or not one of the server's."""

    status = 401
    code = "invalid_api_key"


class Forbidden(InvalidRequest):
    """The Host or Origin header does not belong to this server."""

    status = 403
    code = "forbidden_host"


class BodyTooLarge(InvalidRequest):
    """The body is larger than the server reads."""

    status = 413
    code = "body_too_large"


class BodyTooSlow(InvalidRequest):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class ClientGone(InvalidRequest):
    """The client left before its request was complete; nobody reads this."""

    status = 499


class ErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an error reply."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """An error reply, and the chunk that ends a stream that failed."""

    error: ErrorDetail


def error_body(error: HeadraceError) -> ErrorBody:
    """The reply's body for a typed error."""
    return ErrorBody(ErrorDetail(error.message, error.kind, error.param, error.code))


def error_response(error: HeadraceError) -> Response:
    """The reply for a typed error; 503 says when to come back, 401 how to authenticate."""
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    elif error.status == 503:
        headers["retry-after"] = "5"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not wanted
    return json_response(error_body(error), status=error.status, headers=headers)


def json_response(
    body: msgspec.Struct, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A reply of compact JSON."""
    return Response(
        msgspec.json.encode(body), status_code=status, headers=headers, media_type="application/json"
    )


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app`, its own and the framework's, leave in OpenAI's shape."""

    async def typed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError)
        call_of(request).note(error)
        return error_response(error)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        body = ErrorBody(ErrorDetail(message, "invalid_request_error", None, code))
        return json_response(body, status=error.status_code, headers=dict(error.headers or {}))

    async def unexpected(request: Request, error: Exception) -> Response:
        # The text of an unknown error may hold a path or a prompt: it goes to the log's traceback only.
        detail = ErrorDetail("the server failed; its log has the details", "server_error", None, None)
        return json_response(ErrorBody(detail), status=500)

    app.add_exception_handler(HeadraceError, typed)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, unexpected)
