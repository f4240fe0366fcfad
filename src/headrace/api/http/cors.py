"""Which pages of other origins may call the server, in the terms of the Fetch standard (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers

ANY = "*"
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
# What clients read; a page sees no other header of a reply.
EXPOSED = ", ".join(
    [
        "x-request-id",
        "request-id",
        "retry-after",
        "retry-after-ms",
        *(
            f"x-ratelimit-{what}-{of}"
            for of in ("requests", "tokens")
            for what in ("limit", "remaining", "reset")
        ),
    ]
)
PREFLIGHT_AGE_S = 600


class Cors:
    """The setting `cors_origins`. Without it pages elsewhere get no header that lets them read a reply."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.lower() for origin in origins)

    def allows(self, origin: str | None) -> bool:
        """Whether pages of that origin may call."""
        return origin is not None and (self._any or origin.lower() in self._origins)

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Whether a browser asks what a page may send, on behalf of one that may."""
        asks = method == "OPTIONS" and "access-control-request-method" in headers
        return asks and self.allows(headers.get("origin"))

    def headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """What every reply to `origin` (None: not a page) carries."""
        if not self._origins:
            return []
        found = [(b"vary", b"Origin")]
        if origin is None or not self.allows(origin):
            return found
        if self._any:  # never with credentials: everybody's page could use them
            found.append((b"access-control-allow-origin", ANY.encode()))
        else:
            found.append((b"access-control-allow-origin", origin.encode("latin-1")))
            found.append((b"access-control-allow-credentials", b"true"))
        return [*found, (b"access-control-expose-headers", EXPOSED.encode())]

    def preflight_headers(self, headers: Headers) -> dict[str, str]:
        """What the answer to a preflight adds: any header may be sent, the server looks at them itself."""
        asked = headers.get("access-control-request-headers")
        return {
            "access-control-allow-methods": METHODS,
            "access-control-max-age": str(PREFLIGHT_AGE_S),
            **({} if asked is None else {"access-control-allow-headers": asked}),
        }
