"""Calls of this server's own HTTP endpoints without a connection, so that whatever holds for these holds
here: keys, scopes, limits, accounts, the log of requests, traces."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Message

from headrace.struct_types import thread_safe

CANCEL_S = 5.0
"""After a client has left: until the endpoint has noticed."""


class CallRefused(Exception):
    """An endpoint has answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Caller(Struct, frozen=True):
    """Who calls: headers that come from the client, and its address."""

    headers: Sequence[tuple[bytes, bytes]]
    address: str


class _Problem(Struct):
    message: str = ""


class _Body(Struct):
    error: _Problem = msgspec.field(default_factory=_Problem)


async def call_http(
    app: ASGIApp,
    caller: Caller,
    method: str,
    path: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The body of the reply; CallRefused where its status is an error. Where this is cancelled the endpoint
    sees a client that has left."""
    gone, sent_body = asyncio.Event(), False
    status, parts = 500, list[bytes]()

    async def receive() -> Message:
        nonlocal sent_body
        if not sent_body:
            sent_body = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    own = {"host": "localhost", "content-length": str(len(body)), **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [*((name.encode(), value.encode()) for name, value in own.items()), *caller.headers],
        "client": (caller.address, 0),
        "server": ("localhost", None),
        "extensions": {},
        "state": {},
    }
    running = asyncio.ensure_future(app(scope, receive, send))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        gone.set()
        with suppress(Exception):
            await asyncio.wait_for(running, CANCEL_S)
        raise
    found = b"".join(parts)
    if status >= 400:
        raise CallRefused(status, _message(found) or f"status {status}")
    return found


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=thread_safe(_Body)).error.message
    except msgspec.DecodeError:
        return ""
