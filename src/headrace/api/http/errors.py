"""Errors of the HTTP surface: in the shape of the surface whose path was asked for, whatever went wrong."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from headrace.api.anthropic.errors import MESSAGES_PATH, anthropic_error
from headrace.api.google.errors import PATHS as GOOGLE_PATHS
from headrace.api.google.errors import google_error
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.llama_cpp.errors import PATHS as LLAMA_PATHS
from headrace.api.llama_cpp.errors import llama_error
from headrace.api.ollama.errors import ollama_error
from headrace.api.tei.errors import PATHS as TEI_PATHS
from headrace.api.tei.errors import tei_error
from headrace.errors import HeadraceError, InvalidRequest, Overloaded

LOG = logging.getLogger("headrace.api")


class Unauthorized(InvalidRequest):
    """The key is missing or not one of the server's."""

    remedy = "Send a key of this server as `Authorization: Bearer KEY`; `headrace keys add NAME` makes one."
    status = 401
    code = "invalid_api_key"


class Forbidden(InvalidRequest):
    """The Host or Origin header does not belong to this server."""

    remedy = "Call the server by its own address, or name the host in `--allowed-hosts`."
    status = 403
    code = "forbidden_host"


class BodyTooLarge(InvalidRequest):
    """The body is larger than the server reads."""

    remedy = "Send less than 32 MiB; put many requests into a batch file."
    status = 413
    code = "body_too_large"


class BodyTooSlow(InvalidRequest):
    """The body did not arrive in time."""

    remedy = "Send the body without long breaks."
    status = 408
    code = "request_timeout"


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed."""

    remedy = "Send the body as it is, without `Content-Encoding`."
    status = 415
    code = "unsupported_encoding"


class ClientGone(InvalidRequest):
    """The client left before its request was complete or had begun to run; no client reads this."""

    remedy = "None: no client is left to read it."
    status = 499


class NotFound(InvalidRequest):
    """There is nothing of that id, or it is another key's."""

    remedy = "Check the id, and that the request has the key that made it."
    status = 404
    code = "not_found"


class NoSuchRoute(InvalidRequest):
    """The path is none of this server's, or does not take the method."""

    remedy = "See the endpoints at `/docs`."

    def __init__(self, message: str, *, status: int) -> None:
        code = {404: "not_found", 405: "method_not_allowed"}.get(status)
        super().__init__(message, code=code)
        self.status = status


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


ErrorShape = Callable[[HeadraceError, HttpCall], tuple[int, msgspec.Struct]]
"""The status and the body that a surface gives an error."""


def openai_error(error: HeadraceError, call: HttpCall) -> tuple[int, msgspec.Struct]:
    """OpenAI's shape: four keys always."""
    return error.status, error_body(error)


# Other surfaces by their paths, whole ones first.
OF_PATHS: Mapping[str, ErrorShape] = dict.fromkeys(TEI_PATHS, tei_error)
SHAPES: Mapping[str, ErrorShape] = {
    "/api/": ollama_error,
    MESSAGES_PATH: anthropic_error,
    GOOGLE_PATHS: google_error,
    **dict.fromkeys(LLAMA_PATHS, llama_error),
}


def error_response(error: HeadraceError, call: HttpCall) -> Response:
    """The reply for a typed error; 503 says when to come back, 401 how to authenticate."""
    beginning = next((shape for path, shape in SHAPES.items() if call.surface.startswith(path)), openai_error)
    shape = OF_PATHS.get(call.surface, beginning)
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    elif error.status == 503:
        headers["retry-after"] = "5"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 408:
        headers["connection"] = "close"  # the rest of the body is not wanted
    if error.should_retry is not None:
        headers["x-should-retry"] = str(error.should_retry).lower()
    status, body = shape(error, call)
    return json_response(body, status=status, headers=headers)


def json_response(
    body: msgspec.Struct | msgspec.Raw, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A reply of compact JSON."""
    return Response(
        msgspec.json.encode(body), status_code=status, headers=headers, media_type="application/json"
    )


def install_error_handlers(app: Starlette) -> None:
    """Make every error of `app`, its own and the framework's, leave in the shape of its surface."""

    async def typed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError)
        call_of(request).fail(error)
        return error_response(error, call_of(request))

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        reply = error_response(NoSuchRoute(message, status=error.status_code), call_of(request))
        if error.status_code == 405:
            reply.headers["allow"] = ", ".join(sorted(_methods(app, request)))
        return reply

    async def too_deep(request: Request, error: Exception) -> Response:
        # Parsing has a bound of its own; what is below it may still be too deep for a template or a schema.
        LOG.warning("a request is nested too deeply", exc_info=error)
        refused = InvalidRequest("the body is nested too deeply: flatten it", code="invalid_json")
        return await typed(request, refused)

    async def unexpected(request: Request, error: Exception) -> Response:
        # The text of an unknown error may hold a path or a prompt: it goes to the log's traceback only.
        hidden = HeadraceError("the server failed; its log has the details")
        return error_response(hidden, call_of(request))

    app.add_exception_handler(HeadraceError, typed)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RecursionError, too_deep)
    app.add_exception_handler(Exception, unexpected)


def _methods(app: Starlette, request: Request) -> set[str]:
    """The methods that a path takes, by all routes that it fits."""
    routes = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes if isinstance(route, Route) for method in route.methods or ()}
