"""Requests that go on after the server was killed: they are recorded as they come."""

from __future__ import annotations

import logging
import re
import time
from weakref import WeakKeyDictionary

import msgspec
from starlette.types import Message, Receive, Scope, Send

from headrace.api.http.call_context import HttpCall
from headrace.api.http.held_reply import HeldBytes, HeldReply
from headrace.api.http.idempotency import HEADER as IDEMPOTENCY_KEY
from headrace.config.journal_settings import JournalSettings
from headrace.errors import EngineStopped, HeadraceError
from headrace.inference.accounts import Account
from headrace.inference.admission import AdmissionGate
from headrace.inference.store_threads import StoreThreads
from headrace.journal.call_journal import CallJournal, Journal
from headrace.journal.frames import read_cipher, tag_of
from headrace.journal.known_requests import KnownRequest
from headrace.journal.log import Log
from headrace.journal.reader import RecordKind
from headrace.journal.records import EndedReply, OpenedRequest, shared_id

LOG = logging.getLogger("headrace.journal")
GENERATING = re.compile(
    r"(/v1)?/(chat/completions|completions)|/v1/(messages|responses)|/api/(chat|generate)|/completion|/infill"
    r"|/v1beta/models/.+:(g|streamG)enerateContent"
)
"""Paths of requests whose answers take long enough that a server may be killed meanwhile."""
KEPT_HEADERS = frozenset(
    f"{name}".encode()
    for name in (
        *("content-type", "accept", "cache-control", "anthropic-version"),
        *("anthropic-beta", "traceparent", "tracestate", "x-headrace-hops", IDEMPOTENCY_KEY),
    )
)
MAX_BODY_BYTES = 32 * 2**20
MAX_OF_ONE_ID = 1000  # clients may send an id again
CLIENT_GONE = 499
NOT_KEPT = "the journal takes no records; this request would be lost if the server were killed"


class JournaledCall:
    """A request that runs, and its reply so far."""

    def __init__(self, whole: ServerJournal, call: HttpCall, scope: Scope, owner: str) -> None:
        self.call, self.owner, self.reply = call, owner, HeldReply(whole.held)
        self.journal: CallJournal | None = None
        self.answered: HttpCall = call
        self.error: HeadraceError | None = None
        """What the HTTP call has failed with, which the call itself lets go of."""
        self._whole, self._scope = whole, scope
        self._body = bytearray()
        self._is_open = False

    def receiving(self, receive: Receive) -> Receive:
        """`receive` for the application: the request is recorded as soon as its body is there."""

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not self._is_open:
                self._body += message.get("body", b"")
                if not message.get("more_body", False):
                    self._is_open = True
                    self._whole.opened(self, bytes(self._body), self._scope)
                    self._body.clear()
            return message

        return received

    def sending(self, send: Send) -> Send:
        """`send` for the application: what the client sees is held, and events have numbers."""

        async def sent(message: Message) -> None:
            if self.journal is not None:
                if message["type"] == "http.response.start":
                    await self.journal.journal.kept()
                    if not self.journal.is_kept:  # it was let in while the disk still took something
                        self.call.warn("journal", NOT_KEPT)
                message = self.reply.take(message)
            await send(message)

        return sent

    def end(self) -> None:
        """The HTTP call is over."""
        self.reply.end()
        self.error = self.answered.error or self.error
        if self.journal is not None:
            self.journal.end(lambda: self._whole.ending(self))
        else:
            self._whole.forget_running(self)


class ServerJournal:
    """Lives on the event loop. `running` are the requests that have not ended, by owner and id."""

    def __init__(self, settings: JournalSettings, threads: StoreThreads, gate: AdmissionGate) -> None:
        """Raises JournalInUse, JournalUnwritable."""
        self.settings, self.threads, self._gate = settings, threads, gate
        log = Log(
            settings.folder,
            budget_bytes=settings.bytes,
            max_age_s=settings.max_age,
            cipher=read_cipher(settings.key_file),
        )
        self.journal = Journal(log, fsync=settings.fsync, on_full=settings.on_full)
        self.running: dict[tuple[str, str], JournaledCall] = {}
        self.resumed, self.held = 0, HeldBytes()
        self._owners: WeakKeyDictionary[Account, str] = WeakKeyDictionary()

    @property
    def damages(self) -> list[str]:
        """What was found damaged since the server started."""
        return [one.message for one in self.journal.log.damages]

    async def begin(self, call: HttpCall, scope: Scope) -> JournaledCall | None:
        """Record a request that generates. Raises JournalUnwritable where it is refused for that."""
        if GENERATING.fullmatch(call.path) is None:
            return None
        warning = self.journal.check()
        if warning is not None:
            call.warn("journal", warning)
        return JournaledCall(self, call, scope, await self.owner(call.account))

    async def owner(self, account: Account) -> str:
        """Whose requests those of an account are."""
        if account not in self._owners:
            self._owners[account] = await self.threads.run(account.owner)
        return self._owners[account]

    def opened(self, journaled: JournaledCall, body: bytes, scope: Scope) -> None:
        """A request's body is there."""
        call = journaled.call
        if len(body) > MAX_BODY_BYTES:
            call.warn("journal", f"a body of {len(body):,} bytes is not kept: a killed server loses it")
            return
        opened = OpenedRequest(
            request_id=call.request_id,
            nonce=call.nonce,
            method=call.method,
            path=scope["path"],
            query=scope.get("query_string", b""),
            headers=tuple(one for one in scope["headers"] if one[0] in KEPT_HEADERS),
            owner=journaled.owner,
            client=call.client,
            arrived_unix_s=call.arrived_unix_s,
            no_store=call.no_store,
            body=body,
        )
        call.journal = journaled.journal = self.journal.open(opened)
        self._register(journaled, opened)

    def find(self, request_id: str, owner: str, *, is_admin: bool) -> JournaledCall | None:
        """A request that runs, by its id or its reply's: one of `owner`, or for an admin anybody's."""
        name = shared_id(request_id)
        found = self.running.get((owner, name))
        if found is None and is_admin:
            found = next((one for (_, known), one in self.running.items() if known == name), None)
        return found

    async def runs(self, request_id: str, owner: str, *, is_admin: bool) -> bool:
        """Whether such a request has not ended; one of which only the ledger's line is missing has."""
        found = self.find(request_id, owner, is_admin=is_admin)
        if found is not None and found.journal is not None:
            await found.journal.booked()
            found = self.find(request_id, owner, is_admin=is_admin)
        return found is not None

    async def kept(self, request_id: str, owner: str | None) -> EndedReply | None:
        """The reply to the latest request of that id and owner (None: of anybody)."""

        def read() -> EndedReply | None:
            log = self.journal.log
            numbers = log.find(tag_of(shared_id(request_id)))[:MAX_OF_ONE_ID]
            found = log.read(numbers, RecordKind.OPENED, RecordKind.ENDED)
            for number in numbers:  # the latest first
                by_kind = {one.kind: one.payload for one in found.get(number, ())}
                if len(by_kind) < 2:
                    continue
                opened = msgspec.msgpack.decode(by_kind[RecordKind.OPENED], type=OpenedRequest)
                if owner is None or opened.owner == owner:
                    return msgspec.msgpack.decode(by_kind[RecordKind.ENDED], type=EndedReply)
            return None

        self.journal.flush()  # it may have ended a moment ago
        return await self.threads.run(read)

    async def delete(self, request_id: str, owner: str | None) -> list[str]:
        """Forget the requests of that id, those of `owner` alone unless it is None; their nonces. They are
        gone from the disk when this returns."""
        tag, log = tag_of(shared_id(request_id)), self.journal.log

        def read() -> dict[int, str]:
            found: dict[int, str] = {}
            for number, records in log.read(log.find(tag), RecordKind.OPENED).items():
                for one in records:
                    opened = msgspec.msgpack.decode(one.payload, type=OpenedRequest)
                    if owner is None or opened.owner == owner:
                        found[number] = opened.nonce
            return found

        self.journal.flush()
        numbers = await self.threads.run(read)
        if numbers:
            await self.journal.forget(list(numbers))
        return list(numbers.values())

    def ending(self, journaled: JournaledCall) -> EndedReply | None:
        """How a request has ended; None where only the server has, and the request is to go on."""
        self.forget_running(journaled)
        call, reply, journal = journaled.answered, journaled.reply, journaled.journal
        failure = call.error or journaled.error
        is_cut = not reply.is_whole or isinstance(failure, EngineStopped)
        if self._gate.draining and (is_cut or (journal is not None and journal.is_interrupted)):
            return None
        usages = call.usages
        return EndedReply(
            status=reply.status if reply.is_whole else CLIENT_GONE,
            error=None if failure is None else failure.code or failure.kind,
            headers=reply.headers,
            parts=None if reply.is_cut else tuple(reply.parts),
            is_stream=reply.is_stream,
            model=call.model,
            fingerprint="" if journal is None else journal.fingerprint,
            total_s=time.monotonic() - call.arrival_s,
            completion_tokens=sum(one.completion_tokens for one in usages),
            prompt_tokens=sum(one.prompt_tokens for one in usages) if usages else None,
            cached_tokens=sum(one.cached_tokens for one in usages) if usages else None,
            first_token_s=call.first_token_s,
            key_name=call.account.name or "",
            trace_id=call.recorded_trace,
            ended_unix_s=time.time(),
        )

    def forget_running(self, journaled: JournaledCall) -> None:
        """It has ended."""
        journaled.reply.let_go()
        for name in (journaled.call.nonce, journaled.call.request_id):
            place = journaled.owner, shared_id(name)
            if self.running.get(place) is journaled:
                del self.running[place]

    async def close(self) -> None:
        """Leave what runs for the next start."""
        await self.journal.close()

    def restored(self, known: KnownRequest, call: HttpCall) -> JournaledCall:
        """A request of an earlier server, which goes on as `call`."""
        journaled = JournaledCall(self, call, {}, known.opened.owner)
        call.journal = journaled.journal = CallJournal(self.journal, known.number, known.opened, known)
        self._register(journaled, known.opened)
        return journaled

    def _register(self, journaled: JournaledCall, opened: OpenedRequest) -> None:
        for name in (opened.nonce, opened.request_id):
            self.running[journaled.owner, shared_id(name)] = journaled
