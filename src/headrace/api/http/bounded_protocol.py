"""HTTP/1.1 on a socket: uvicorn's httptools protocol with bounded headers and a deadline for them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.api.http.errors import error_body
from headrace.api.http.middleware import new_request_id
from headrace.errors import HeadraceError, InvalidRequest

HEADER_LIMIT_BYTES = 64 * 1024
HEADER_DEADLINE_S = 10.0


class HeadersTooLarge(InvalidRequest):
    """The request line and headers exceed the limit."""

    status = 431
    code = "headers_too_large"


class HeadersTooSlow(InvalidRequest):
    """The headers did not arrive in time."""

    status = 408
    code = "request_timeout"


_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """Refuses endless and trickled headers, and lets a reply abort a connection whose reader has stalled."""

    _header_bytes = 0
    _reading_headers = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its first headers are awaited."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._headers_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes while headers are read. The parser stops us at their end."""
        if self._reading_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._reading_headers and self._header_bytes > HEADER_LIMIT_BYTES:
            self._refuse(
                HeadersTooLarge(f"the headers are larger than {HEADER_LIMIT_BYTES:,} bytes: send fewer")
            )

    def on_message_begin(self) -> None:
        """A request begins: from here on its headers are counted and timed."""
        super().on_message_begin()
        if not self._reading_headers:
            self._await_headers()

    def on_headers_complete(self) -> None:
        """Headers are here; the application may abort the connection from now on."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._headers_done()
        if size > HEADER_LIMIT_BYTES:
            self._refuse(
                HeadersTooLarge(
                    f"the headers have {size:,} bytes, at most {HEADER_LIMIT_BYTES:,} are read: send fewer"
                )
            )
            return
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {"headrace.abort": self.transport.abort}
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Not HTTP at all."""
        self._refuse(InvalidRequest("the request is not valid HTTP/1.1", code="invalid_http"))

    def _idle(self) -> bool:
        # uvicorn leaves `cycle` None until the first request, against its own annotation.
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)
        return cycle is None or cycle.response_complete

    def _await_headers(self) -> None:
        self._header_bytes = 0
        self._reading_headers = True
        self._deadline = self.loop.call_later(HEADER_DEADLINE_S, self._late)

    def _headers_done(self) -> None:
        self._reading_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._refuse(
            HeadersTooSlow(f"the headers did not arrive within {HEADER_DEADLINE_S:g} s: send them again")
        )

    def _refuse(self, error: HeadraceError) -> None:
        """Reply in OpenAI's shape and hang up, where no reply is under way."""
        self._headers_done()
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(error_body(error))
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {new_request_id()}\r\nconnection: close\r\n\r\n"
        )
        if self._idle():
            self.transport.write(head.encode() + body)
        self.transport.close()
