"""Which pages of other origins may call the server, in the terms of the Fetch standard (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from headrace.config.values import LOCALHOST

ANY = "*"
_LOOPBACK = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
# What clients read; a page sees no other header of a reply.
EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "idempotent-replayed",
    *(
        f"x-ratelimit-{what}-{of}"
        for of in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    ),
)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> CORSMiddleware:
    """`app` for pages of `origins`, which are compared whole; any header may be sent, the server looks at
    them itself. Credentials go with named origins only: with all of them everybody's page could use them."""
    return CORSMiddleware(
        app,
        allow_origins=[origin.lower() for origin in origins if origin != LOCALHOST],
        allow_origin_regex=_LOOPBACK if LOCALHOST in origins else None,
        allow_methods=METHODS,
        allow_headers=[ANY],
        allow_credentials=ANY not in origins,
        expose_headers=EXPOSED,
    )
