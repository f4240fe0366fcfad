"""Idempotency-Key: requests of one key are computed once, and all get the reply of the first.

The header and its errors follow draft-ietf-httpapi-idempotency-key-header. A request with a key goes on when
its client leaves, so that a client that lost the connection asks again and gets what it has not read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from headrace.api.http.call_context import HttpCall
from headrace.errors import InvalidRequest, StoreError
from headrace.inference.store_threads import StoreThreads
from headrace.storage.idempotent_replies import IdempotentReplies, KeptReply

LOG = logging.getLogger("headrace.api")
HEADER = "idempotency-key"
REPLAYED = "idempotent-replayed"
MAX_KEY = 255
MAX_REPLY_BYTES = 8 * 2**20
MAX_RUNNING_BYTES = 64 * 2**20
"""Of all replies that are being made."""
MIN_BOUNDARY = 8
"""Bytes of a boundary that is left out of a form when forms are compared; shorter ones are part of it."""
NO_REPLY = "the request that had this Idempotency-Key ended without a reply to repeat"


class BadIdempotencyKey(InvalidRequest):
    """The key is empty, too long, or not of printable ASCII characters."""

    remedy = (
        "Send a fresh random value, such as a UUID, for each request, and the same one when you repeat it."
    )
    code = "invalid_idempotency_key"


class IdempotencyKeyReused(InvalidRequest):
    """The key belongs to a request with another body."""

    remedy = "Use a new key for a new request."
    status = 422
    code = "idempotency_key_reused"


class ReplyNotKept(InvalidRequest):
    """The request that had the key ended without a reply that can be given again."""

    remedy = "Send the request again with the same key."
    status = 409
    code = "reply_not_kept"


class BodyDigest:
    """The digest of a body that arrives in parts. Of a form its boundary does not count: clients draw another
    one each time."""

    def __init__(self, scope: Scope) -> None:
        self._hashing, self.size = hashlib.sha256(), 0
        kind, options = parse_options_header(Headers(scope=scope).get("content-type", ""))
        boundary = options.get(b"boundary", b"") if kind.startswith(b"multipart/") else b""
        self._boundary = boundary if len(boundary) >= MIN_BOUNDARY else b""
        self._rest = b""  # may be the beginning of a boundary

    def update(self, body: bytes) -> None:
        """One more part."""
        if self._boundary:
            *whole, last = (self._rest + body).split(self._boundary)
            body, size = b"".join(part + b"\0" for part in whole), len(last) - len(self._boundary) + 1
            body, self._rest = body + last[: max(0, size)], last[max(0, size) :]
        self._hashing.update(body)
        self.size += len(body)

    def digest(self) -> bytes:
        """Of all parts; there are no more."""
        self._hashing.update(self._rest)
        self.size += len(self._rest)
        self._rest = b""
        return self._hashing.digest()


class Recording:
    """The first request of a key: notes its body's digest and its reply, while both pass."""

    def __init__(self, place: bytes, whole: IdempotentCalls, call: HttpCall) -> None:
        self.place, self.call, self._whole = place, call, whole
        self.body_bytes = 0
        self.digest: bytes | None = None  # until the body has arrived
        self.messages: list[Message] = []
        self.size = 0
        self.is_kept, self.is_over = True, False
        self._changed = asyncio.Event()
        self._never = asyncio.Event()

    def receiving(self, receive: Receive, scope: Scope) -> Receive:
        """`receive` for the application, which never hears that the client has left."""
        hashing = BodyDigest(scope)

        async def received() -> Message:
            if self.digest is not None:
                await self._never.wait()
            message = await receive()
            if message["type"] == "http.request":
                hashing.update(message.get("body", b""))
                if not message.get("more_body", False):
                    self.digest, self.body_bytes = hashing.digest(), hashing.size
                    self._tell()
            return message

        return received

    def sending(self, send: Send) -> Send:
        """`send` for the application."""

        async def sent(message: Message) -> None:
            self._note(message)
            await send(message)

        return sent

    def _note(self, message: Message) -> None:
        body = message.get("body", b"")
        self.size += len(body)
        self._whole.running_bytes += len(body)
        if self.size > MAX_REPLY_BYTES or self._whole.running_bytes > MAX_RUNNING_BYTES:
            self.is_kept = False
        if self.is_kept:
            # a copy: headers are added to the message on its way
            self.messages.append(dict(message))
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_over = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def extra(self) -> dict[str, str]:
        """Headers of the reply that the server adds for the call."""
        return dict(self.call.reply_headers)

    def end(self) -> None:
        """The call is over: keep its reply, where it is a whole one without an error."""
        started = self.messages[0] if self.messages else None
        fine = self.is_over and self.is_kept and self.call.error is None
        if fine and started is not None and started["status"] < 400 and self.digest is not None:
            reply = KeptReply(
                self.digest,
                self.body_bytes,
                started["status"],
                tuple((bytes(name), bytes(value)) for name, value in started.get("headers", ())),
                self.extra,
                b"".join(message.get("body", b"") for message in self.messages[1:]),
            )
            self._whole.keep(self, reply)
        else:
            self.is_kept = False
            self._whole.forget(self)
        self._tell()

    async def body_known(self) -> bytes | None:
        """The digest of the first request's body; None where it ended before its body had arrived."""
        while self.digest is None and self._whole.is_running(self):
            await self._changed.wait()
        return self.digest

    async def messages_of_it(self) -> AsyncGenerator[Message]:
        """The reply from its beginning, as it is made. ReplyNotKept where it breaks off."""
        at = 0
        while True:
            while at < len(self.messages):
                yield dict(self.messages[at])
                at += 1
            if self.is_over and self.is_kept:
                return
            if not self.is_kept or not self._whole.is_running(self):
                raise ReplyNotKept(NO_REPLY)
            await self._changed.wait()


class IdempotentCalls:
    """The requests with keys that are under way, and the replies that are kept."""

    def __init__(self, replies: IdempotentReplies, threads: StoreThreads) -> None:
        self._replies, self._threads = replies, threads
        self._running: dict[bytes, Recording] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self.running_bytes = 0

    async def begin(self, key: str, call: HttpCall, scope: Scope) -> Recording | KeptReply:
        """What to repeat (a recording that runs, or a kept reply), or a new recording for this call."""
        if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
            raise BadIdempotencyKey(
                f"the Idempotency-Key has {len(key)} characters: send 1 to {MAX_KEY} printable ASCII ones"
            )
        owner = await self._threads.run(call.account.owner)  # not its name, which another key may get later
        who = f"key {owner}" if owner else f"address {call.client}"
        asked = "\0".join((who, call.path, scope["query_string"].decode("latin-1"), key))
        place = hashlib.sha256(asked.encode()).digest()
        if (running := self._running.get(place)) is not None:
            return running
        kept = await self._threads.run(lambda: self._replies.find(place))
        if kept is not None:
            return kept
        return self._running.setdefault(place, Recording(place, self, call))

    def is_running(self, recording: Recording) -> bool:
        """Whether its call has not ended."""
        return self._running.get(recording.place) is recording

    def forget(self, recording: Recording) -> None:
        """Its call has ended, and what it gave is not kept here any more."""
        if self.is_running(recording):
            del self._running[recording.place]
            self.running_bytes -= recording.size

    def keep(self, recording: Recording, reply: KeptReply) -> None:
        """Write a reply to the store; until that is done it is given from memory."""

        async def write() -> None:
            try:
                await self._threads.run(lambda: self._replies.add(recording.place, reply))
            except StoreError as error:
                LOG.warning("the reply to a request with an Idempotency-Key is not kept: %s", error.message)
            finally:
                self.forget(recording)

        task = asyncio.get_running_loop().create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def repeat(
        self, found: Recording | KeptReply, call: HttpCall, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Reply to a request as the first one of its key was. Raises what refuses it."""
        sent = await _body_of(receive, scope, found)
        first = found.digest if isinstance(found, KeptReply) else await found.body_known()
        if first is None:
            raise ReplyNotKept("the request that had this Idempotency-Key left before its body had arrived")
        if first and first != sent:
            raise IdempotencyKeyReused("the Idempotency-Key was sent with another body before")
        call.explain = False  # nothing is computed
        if isinstance(found, KeptReply):
            call.reply_headers.update(found.extra | {REPLAYED: "true"})
            await send(
                {"type": "http.response.start", "status": found.status, "headers": list(found.headers)}
            )
            await send({"type": "http.response.body", "body": found.body})
            return
        call.reply_headers[REPLAYED] = "true"
        begun = False
        try:
            async for message in found.messages_of_it():
                if message["type"] == "http.response.start":
                    begun = True
                    call.reply_headers.update(found.extra)
                await send(message)
        except ReplyNotKept as error:
            if not begun:
                raise
            call.fail(error)  # the reply breaks off: the server closes the connection

    async def close(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing)


async def _body_of(receive: Receive, scope: Scope, found: Recording | KeptReply) -> bytes:
    """The digest of a body that nobody needs; IdempotencyKeyReused once it is longer than the first one's."""
    hashing = BodyDigest(scope)
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ReplyNotKept("the client left before its body had arrived")
        hashing.update(message.get("body", b""))
        if found.digest and hashing.size > found.body_bytes:
            raise IdempotencyKeyReused("the Idempotency-Key was sent with another body before")
        if not message.get("more_body", False):
            return hashing.digest()
