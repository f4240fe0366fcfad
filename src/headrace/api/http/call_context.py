"""One HTTP request on its way through the server: its id, its arrival, whose it is, what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest

from headrace.api.http.rate_limits import ApiKeyUsage
from headrace.engine.request import Usage
from headrace.errors import HeadraceError, Overloaded


@dataclass(slots=True, eq=False)
class CallContext:
    """Made by the guard, filled in by those who serve it; lives on the event loop.

    `arrival_s` is of the monotonic clock. `body_bytes` count as held until the reply has ended. `holds` are
    called at its end: they let go of the models that it uses. `surface` is the path of the surface whose
    conventions the reply follows. What is `idle` waits for everything else.
    """

    request_id: str
    method: str
    path: str
    account: ApiKeyUsage
    arrival_s: float = field(default_factory=time.monotonic)
    body_bytes: int = 0
    body: bytes = b""
    first_token_s: float | None = None
    usages: list[Usage] = field(default_factory=list[Usage])
    status: int = 0
    surface: str = field(init=False)
    error: str | None = None
    refusal: str | None = None
    model: str = ""
    holds: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    idle: bool = False

    def __post_init__(self) -> None:
        self.surface = self.path

    def note(self, error: HeadraceError) -> None:
        """Remember what the call ended with."""
        self.error = error.code or error.kind
        if isinstance(error, Overloaded):
            self.refusal = error.reason


def call_of(http: HttpRequest) -> CallContext:
    """The call that `http` belongs to."""
    call = http.scope["headrace.call"]
    assert isinstance(call, CallContext)
    return call
