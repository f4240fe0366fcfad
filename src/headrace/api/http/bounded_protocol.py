"""HTTP/1.1 on a socket: uvicorn's httptools protocol within limits of bytes and time.

Everything of a message but its body (request line, headers, chunk extensions, trailers) has one budget.
Headers, the rest of the message, what waits for a reader, and a body that is not wanted any more have a
deadline each.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from functools import cache
from typing import cast

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.api.http.errors import error_body
from headrace.api.http.request_body import BODY_DEADLINE_S, BODY_LIMIT_BYTES
from headrace.errors import HeadraceError, InvalidRequest
from headrace.inference.call_context import new_request_id

LOG = logging.getLogger("headrace.api")

HEADER_LIMIT_BYTES = 64 * 1024
CHUNK_BYTES = 16  # its length and line ends
LINGER_BYTES = 2**20  # of a body that came after its reply
HEADER_DEADLINE_S = 10.0
MESSAGE_SLACK_S = 5.0  # beyond the body's own deadline, after which its reader replies 408
LINGER_S = 5.0
STALL_S = 60.0
STALL_BYTES = 2**20  # or all, which a reader must take in STALL_S
MAX_PIPELINED = 64
RESERVED_FILES = 256
PROBES_S = (0.005, 0.05, 0.5, 2.0)  # after the end of what a client sends: has it gone?
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HeadersTooLarge(InvalidRequest):
    """The request line, headers, chunk extensions and trailers exceed the limit."""

    status = 431
    code = "headers_too_large"


class HeadersTooSlow(InvalidRequest):
    """The headers did not arrive in time."""

    status = 408
    code = "request_timeout"


class UnknownTransferCoding(InvalidRequest):
    """The Transfer-Encoding is none that is read here."""

    status = 501
    code = "unsupported_transfer_encoding"


_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
}


class MessageBudget:
    """Counts the bytes of the message that is being received."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A message is over, another may begin. What of that came in the same read is not counted."""
        self._overhead = 0
        self._body = 0
        self._body_before = 0

    def received(self, size: int) -> None:
        """Bytes of any kind have come; they count as no body until `body` or `chunk` says otherwise."""
        self._overhead += size

    def chunk(self) -> None:
        """One of them was the beginning of a chunk."""
        self._overhead = max(0, self._overhead - CHUNK_BYTES)

    def body(self, size: int) -> None:
        """Of them were `size` bytes of body."""
        self._overhead = max(0, self._overhead - size)
        self._body += size

    def reply_sent(self) -> None:
        """The reply has been sent: what comes of the body now is not wanted."""
        self._body_before = self._body

    @property
    def exceeded(self) -> bool:
        """Whether request line, headers, chunk extensions and trailers are too large, give or take one
        read from the socket."""
        return self._overhead > HEADER_LIMIT_BYTES

    def body_exceeded(self, *, unwanted: bool) -> bool:
        """Whether so much of a body has come that no reader can want it. A reader's own limit is lower."""
        if unwanted:
            return self._body - self._body_before > LINGER_BYTES
        return self._body > BODY_LIMIT_BYTES + LINGER_BYTES


@cache
def max_connections() -> int:
    """Connections at a time: as many as files may be open, but those that the server needs itself."""
    return max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES)


class PipelineFlow(FlowControl):
    """Reads on only while no request waits behind another one, and not beyond the end of input."""

    hold = False

    def resume_reading(self) -> None:
        """Read on, unless reading is held."""
        if not self.hold:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Refuses what is endless, trickles or floods, and cuts connections whose reader has stalled."""

    _reading_headers = True
    _in_message = True  # from the connection on: its first request is awaited
    _has_cycle = False  # whether the application replies to the message
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _eof = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its first headers are awaited."""
        super().connection_made(transport)
        self.flow = PipelineFlow(transport)
        self._budget = MessageBudget()
        self._idle_since_s = self.loop.time()
        self._set_deadline(HEADER_DEADLINE_S)
        if len(self.connections) > max_connections():
            self._shed()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._clear_deadline()
        self._unset_stalled()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and count what is not body."""
        if self.transport.is_closing():
            return
        self._budget.received(len(data))
        try:
            super().data_received(data)
        except Exception:  # what a parser's callback raises must not leave the connection open
            LOG.exception("a request cannot be read")
            self._close()
        if self.transport.is_closing():
            return
        if self._budget.exceeded:
            self._refuse(
                HeadersTooLarge(
                    f"headers, chunk extensions and trailers have more than {HEADER_LIMIT_BYTES:,} bytes: "
                    "send fewer"
                )
            )
        elif not self._in_message and self._idle() and self._deadline is None:
            self._set_deadline(HEADER_DEADLINE_S)  # empty lines, which begin no request

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It may still read: then a complete request gets its reply.

        Whether it reads or has gone shows only when something is sent: an interim reply, which clients skip.
        """
        if self._eof or self._in_message or self._idle() or self.cycle.response_started:
            return self._eof and not self._idle()
        if self.cycle.scope["http_version"] != "1.1" or self.pipeline:
            return False
        self._eof = True
        self.flow.hold = True  # type: ignore[attr-defined]
        self.cycle.keep_alive = False
        self.transport.write(CONTINUE)
        for delay_s in PROBES_S:
            self.loop.call_later(delay_s, self._probe)
        return True

    def on_message_begin(self) -> None:
        """A request begins: from here on it is counted and timed."""
        super().on_message_begin()
        self._in_message = self._reading_headers = True
        self._has_cycle = False
        self._set_deadline(HEADER_DEADLINE_S)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers are counted and dropped."""
        if self._reading_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Headers are here: the application may reply."""
        self._reading_headers = False
        if self.transport.is_closing():
            return
        refusal = self._header_refusal()
        if refusal is not None:
            self._refuse(refusal)
            return
        self._set_deadline(BODY_DEADLINE_S + MESSAGE_SLACK_S)
        super().on_headers_complete()
        self._has_cycle = True
        self.flow.hold = bool(self.pipeline)  # type: ignore[attr-defined]

    def on_chunk_header(self) -> None:
        """A chunk begins; its length is no header."""
        self._budget.chunk()

    def on_body(self, body: bytes) -> None:
        """A part of the body, which is for the application, or after its reply for none."""
        self._budget.body(len(body))
        if self.transport.is_closing():
            return
        if self._budget.body_exceeded(unwanted=self._idle()):
            self._close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is here."""
        self._in_message = False
        self._budget.begin()
        self._clear_deadline()
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The reply is written. What is left of its request is read for a moment: hanging up now would
        take the reply from a client that still sends."""
        self._idle_since_s = self.loop.time()
        self.flow.hold = self._eof or len(self.pipeline) > 1  # type: ignore[attr-defined]
        waiting = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif not self._in_message or self._reading_headers:
            return
        elif waiting:  # the next request, whose rest was not read until now
            self._set_deadline(BODY_DEADLINE_S + MESSAGE_SLACK_S)
        else:
            self._budget.reply_sent()
            self._set_deadline(LINGER_S)

    def pause_writing(self) -> None:
        """More waits for the reader than it should: it has STALL_S to take some."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._unset_stalled()

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        self._close()

    def _unsupported_upgrade_warning(self) -> None:
        """Another protocol was asked for. The reply is HTTP/1.1, and the parser is at its end."""
        if not self._idle():
            self.cycle.keep_alive = False
        else:
            self._close()

    def send_400_response(self, msg: str) -> None:
        """Not HTTP at all."""
        self._refuse(InvalidRequest("the request is not valid HTTP/1.1", code="invalid_http"))

    def _header_refusal(self) -> HeadraceError | None:
        """Why this request is not taken, as far as its headers tell."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEADER_LIMIT_BYTES:
            return HeadersTooLarge(
                f"the headers have {size:,} bytes, at most {HEADER_LIMIT_BYTES:,} are read: send fewer"
            )
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            return UnknownTransferCoding(
                "the only Transfer-Encoding that is read is chunked: send that or none"
            )
        if len(self.pipeline) >= MAX_PIPELINED:
            return InvalidRequest(
                f"more than {MAX_PIPELINED} requests wait on one connection: read replies between them",
                code="too_many_pipelined",
            )
        return None

    def _idle(self) -> bool:
        # uvicorn leaves `cycle` None until the first request, against its own annotation.
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)
        return cycle is None or cycle.response_complete

    def _set_deadline(self, after_s: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(after_s, self._late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self.flow.read_paused:  # by us: behind an earlier request, or the application does not read
            self._set_deadline(HEADER_DEADLINE_S)
        elif self._reading_headers:
            self._refuse(
                HeadersTooSlow(f"the headers did not arrive within {HEADER_DEADLINE_S:g} s: send them again")
            )
        else:
            self._close()

    def _probe(self) -> None:
        """Cut a connection whose client has refused what was sent to it."""
        if self.transport.is_closing():
            return
        handle: socket.socket | None = self.transport.get_extra_info("socket")
        gone = handle is not None and handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if gone:
            self.transport.abort()

    def _watch_reader(self) -> None:
        self._unset_stalled()
        size = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALL_S, self._check_reader, size)

    def _check_reader(self, before: int) -> None:
        """Cut the connection where the reader took less than STALL_BYTES in STALL_S."""
        if before - self.transport.get_write_buffer_size() >= STALL_BYTES:
            self._watch_reader()
            return
        LOG.warning("a client read too little in %g s: its connection is cut", STALL_S)
        self.transport.abort()

    def _unset_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _shed(self) -> None:
        """Cut those connections that have waited longest for a request: new ones need their places."""
        connections = cast("set[BoundedProtocol]", self.connections)
        live = [one for one in connections if one._is_open()]
        if len(live) > max_connections():
            idle = sorted((one for one in live if one._idle()), key=lambda one: one._idle_since_s)
            for one in idle[: 1 + len(idle) // 16]:
                one.transport.abort()

    def _is_open(self) -> bool:
        return not self.transport.is_closing()

    def _refuse(self, error: HeadraceError) -> None:
        """Reply in OpenAI's shape and hang up, where no reply is under way."""
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(error_body(error))
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {new_request_id()}\r\nconnection: close\r\n\r\n"
        )
        if self._idle() and not (self._in_message and self._has_cycle):
            self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        """Hang up when what was written has been read, or STALL_S later."""
        self._clear_deadline()
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_reader()
