"""Serves Arrow Flight SQL on a port, over gRPC.

Arrow's own server of Python takes messages of any length before it asks who sends them, and runs each call
in a thread: gRPC's runs on the event loop of HTTP, and has bounds.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from headrace.config.extras import require
from headrace.errors import UsageError
from headrace.flight.commands import UnknownCommand
from headrace.flight.http_calls import Caller, CallRefused
from headrace.flight.rpcs import MAX_MESSAGE, WRITE_S, FlightCalls, Refused
from headrace.flight.wire import NotMessage, pack

LOG = logging.getLogger("headrace.flight")
SERVICE = "arrow.flight.protocol.FlightService"
MAX_CALLS = 64
MAX_CALLS_OF_KEY = 16
MAX_CALLS_OF_ADDRESS = 48
"""Less than all, whatever keys are sent from there."""
MAX_CONNECTIONS = 256
MAX_ERROR = 2000
STOP_S = 5.0
FORWARDED = frozenset({"authorization", "traceparent", "tracestate", "x-request-id"})
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.absolute_max_metadata_size", 1 << 15),
    ("grpc.max_concurrent_streams", MAX_CALLS_OF_KEY),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.so_reuseport", 0),  # with it a second server could share the port
)
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_PROBLEMS = (CallRefused, NotMessage, UnknownCommand, Refused)
Context = Any
"""gRPC's, which is there only with the extra."""


class ClientLeft(Exception):
    """Nobody reads what a call would send."""


class FlightServer:
    """Serves from `start` to `stop`, which run on the event loop of `app`."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        """`port` 0 picks a free one. ExtraMissing without `headrace[flight]`."""
        require("flight", "grpc", "pyarrow", "duckdb")
        self._grpc: Any = importlib.import_module("grpc")
        self._host, self.port = host, port
        self._calls = FlightCalls(app)
        self._running: Counter[str] = Counter()
        self._server: Any = None

    async def start(self) -> None:
        """Listen; UsageError where the address is taken."""
        aio: Any = importlib.import_module("grpc.aio")
        self._server = server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self.port = server.add_insecure_port(f"{host}:{self.port}")
        except RuntimeError:
            raise UsageError(
                f"cannot listen on {host}:{self.port}: choose another --flight-port or --host"
            ) from None
        await server.start()

    async def stop(self) -> None:
        """Let calls end, for a short time."""
        if self._server is not None:
            await self._server.stop(STOP_S)
        self._calls.close()

    def _handlers(self) -> Any:
        """All as streams of messages, as also the others are sent: gRPC waits for the message of other kinds
        itself, for as long as a client likes, before it calls anything here."""
        grpc, calls = self._grpc, self._calls
        work = {
            "GetFlightInfo": self._one(calls.info),
            "GetSchema": self._one(calls.schema),
            "DoGet": self._rows,
            "DoAction": self._action,
            "ListActions": self._actions,
            "DoPut": self._put,
            "Handshake": self._handshake,
        }
        stream = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(SERVICE, {name: stream(work[name]) for name in work})

    def _one(self, work: Callable[[bytes, Caller], Awaitable[bytes]]) -> Any:
        async def answer(sent: AsyncIterator[bytes], context: Context) -> None:
            async with self._call(context) as caller:
                await _write(context, await work(await self._calls.only(sent, caller), caller))

        return answer

    async def _rows(self, sent: AsyncIterator[bytes], context: Context) -> None:
        async with self._call(context) as caller:
            async for message in self._calls.rows(await self._calls.only(sent, caller), caller):
                await _write(context, message)

    async def _action(self, sent: AsyncIterator[bytes], context: Context) -> None:
        async with self._call(context) as caller:
            for result in await self._calls.action(await self._calls.only(sent, caller), caller):
                await _write(context, result)

    async def _actions(self, sent: AsyncIterator[bytes], context: Context) -> None:
        async with self._call(context):
            for kind in self._calls.actions():
                await _write(context, kind)

    async def _put(self, sent: AsyncIterator[bytes], context: Context) -> None:
        async with self._call(context) as caller:
            await _write(context, await self._calls.put(sent, caller))

    async def _handshake(self, sent: AsyncIterator[bytes], context: Context) -> None:
        async with self._call(context) as caller:
            own = await self._calls.login(caller)
            await context.send_initial_metadata((("authorization", own),))
            await _write(context, pack((1, 0)))

    @asynccontextmanager
    async def _call(self, context: Context) -> AsyncGenerator[Caller]:
        """Who calls, while the call is one of those at the same time. What is wrong with it ends it with a
        status."""
        caller = _caller(context)
        key = [value for name, value in caller.headers if name == b"authorization"]
        places = [(f"address {caller.address}", MAX_CALLS_OF_ADDRESS), (f"key {key}", MAX_CALLS_OF_KEY)]
        for who, _ in places:
            self._running[who] += 1
        try:
            for who, most in places:
                if self._running[who] > most:
                    raise Refused(
                        "RESOURCE_EXHAUSTED", f"more than {most} calls of this {who.split()[0]} run"
                    )
            yield caller
        except _PROBLEMS as error:
            await context.abort(self._grpc.StatusCode[_code(error)], str(error)[:MAX_ERROR])
        except ClientLeft:
            pass
        except Exception:
            LOG.exception("a call of Flight failed")
            await context.abort(self._grpc.StatusCode.INTERNAL, "the call failed: see the server's log")
        finally:
            for who, _ in places:
                self._running[who] -= 1
                if not self._running[who]:
                    del self._running[who]


def _code(error: Exception) -> str:
    """The status of gRPC, by its name."""
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, CallRefused):
        return _CODES.get(error.status, "INTERNAL")
    return "INVALID_ARGUMENT" if isinstance(error, NotMessage) else "UNIMPLEMENTED"


async def _write(context: Context, message: bytes) -> None:
    try:
        await asyncio.wait_for(context.write(message), WRITE_S)
    except TimeoutError:
        raise Refused("DEADLINE_EXCEEDED", "the client reads too slowly") from None
    except Exception as error:  # gRPC's own, whose class is private
        raise ClientLeft from error


def _caller(context: Context) -> Caller:
    headers = [
        (str(name).encode(), value if isinstance(value, bytes) else str(value).encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
        if name in FORWARDED
    ]
    kind, _, address = str(context.peer()).partition(":")
    return Caller(headers, address.rpartition(":")[0] if kind in ("ipv4", "ipv6") else "")
