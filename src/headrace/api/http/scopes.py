"""Which scope a key needs for which request: one table for all surfaces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.api.http.call_context import HttpCall
from headrace.storage.keys import Scope

_TABLE: Sequence[tuple[str, str, Scope]] = (
    ("POST", "/v1/models/.+/(load|unload)", "admin"),
    ("POST", "/api/(pull|push)", "admin"),
    ("POST", "/api/(create|copy)", "alias"),
    ("DELETE", "/api/delete", "alias"),  # a model of the hub needs admin: only its handler knows which it is
)
_SCOPES: Sequence[tuple[str, re.Pattern[str], Scope]] = [
    (method, re.compile(path), scope) for method, path, scope in _TABLE
]
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def required_scope(method: str, path: str) -> Scope | None:
    """The scope that a request needs, None where any key will do: it looks at something, and at files,
    batches and responses only at its own."""
    for known, pattern, scope in _SCOPES:
        if method == known and pattern.fullmatch(path):
            return scope
    return None if method in READS else "infer"


def check_scope(call: HttpCall) -> None:
    """Raise ScopeMissing where the call's key lacks the scope. Without keys everybody has all."""
    scope = required_scope(call.method, call.path)
    if scope is not None:
        call.account.require(scope)
