"""One HTTP request on its way through the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest

from headrace.errors import HeadraceError, Overloaded
from headrace.inference.call_context import CallContext


@dataclass(slots=True, eq=False, kw_only=True)
class HttpCall(CallContext):
    """Made by the middleware. `surface` is the path of the API whose conventions the reply follows.

    `client` names whose shares of memory and reads the call uses: a key, or an address where there are none.
    `body_bytes` of its body count against the server's limit until the reply has begun; `body` is kept for
    the request log only; `text_field` is what it calls texts for models. `releases` are called at its end.
    `status` is that of the reply, 0 where there was none; it `is_whole` unless its client left before its
    end, after `total_s`.
    """

    method: str
    path: str
    surface: str = ""
    client: str = ""
    body_bytes: int = 0
    body: bytes = b""
    text_field: str = "input"
    status: int = 0
    is_whole: bool = True
    total_s: float = 0.0
    error_code: str | None = None
    refusal: str | None = None
    releases: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def __post_init__(self) -> None:
        CallContext.__post_init__(self)  # super() has no class here: slots make another one
        self.surface = self.surface or self.path

    def fail(self, error: HeadraceError) -> None:
        """Remember the error that the call ended with, and why it was refused. Where models are shared, texts
        are `input`: the error names the field that the client has sent."""
        if error.param == "input":
            error.param = self.text_field
        self.error = error
        if isinstance(error, Overloaded):
            self.refusal = error.reason


def call_of(http: HttpRequest) -> HttpCall:
    """The call that `http` belongs to."""
    call = http.scope["headrace.call"]
    assert isinstance(call, HttpCall)
    return call
