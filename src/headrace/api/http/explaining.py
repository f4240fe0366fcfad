"""Adds EXPLAIN to replies that ask for it: the field "explain" of the last JSON object that is sent."""

from __future__ import annotations

import msgspec
from starlette.types import Message, Send

from headrace.api.http.call_context import HttpCall
from headrace.api.http.event_stream import DONE
from headrace.inference.explanation import explanation

HEADER = "x-headrace-explain"

_JSON, _STREAMS = b"application/json", (b"text/event-stream", b"application/x-ndjson")


class Explaining:
    """Sends on the messages of a reply; the last one of an explained call with its tree."""

    def __init__(self, call: HttpCall, send: Send) -> None:
        self._call, self._send = call, send
        self._start: Message | None = None
        self._type = b""
        self._is_done = False  # what was sent last ends a stream of events

    async def __call__(self, message: Message) -> None:
        """See ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._type = _header(message, b"content-type").partition(b";")[0]
            self._start = message  # a length in it is not known before the body is
            if self._type != _JSON and not _header(message, b"content-length"):
                await self._started()
        else:
            body, more = message.get("body", b""), message.get("more_body", False)
            if not more and (self._start or (self._type in _STREAMS and not self._is_done)):
                body = with_field(body, msgspec.json.encode(explanation(self._call)), self._type)
            if self._start is not None and not more:
                _set_length(self._start, len(body))
            elif self._start is not None and _header(self._start, b"content-length"):
                self._type = b""  # in parts, as long as it says: nothing is added
            self._is_done = body.endswith(DONE)
            await self._started()
            await self._send({**message, "body": body})

    async def _started(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            await self._send(start)


def with_field(body: bytes, tree: bytes, media_type: bytes = _JSON) -> bytes:
    """The bytes that end a reply, with `"explain": tree` in the last JSON object; where there is none but the
    stream is one of events, in an event of its own before the end."""
    end = body.rstrip()
    done = end.endswith(DONE.rstrip())
    rest = body.removesuffix(DONE) if done else body
    kept = rest.rstrip()
    if kept.endswith(b"}"):
        comma = b"" if kept[:-1].rstrip().endswith(b"{") else b","
        kept = b'%b%b"explain":%b}%b' % (kept[:-1], comma, tree, rest[len(kept) :])
        return kept + (DONE if done else b"")
    if media_type == _STREAMS[0]:
        return rest + b'data: {"choices":[],"explain":%b}\n\n' % tree + (DONE if done else b"")
    return body


def _header(message: Message, name: bytes) -> bytes:
    return next((value for key, value in message.get("headers", ()) if key == name), b"")


def _set_length(message: Message, length: int) -> None:
    message["headers"] = [
        (key, str(length).encode() if key == b"content-length" else value)
        for key, value in message.get("headers", ())
    ]
