"""The requests of a server that was killed are made again at the next start, and go on where they were."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Message, Receive

from headrace import __version__, _native
from headrace.api.http.call_context import HttpCall
from headrace.api.http.held_reply import nobody
from headrace.api.http.idempotency import HEADER as IDEMPOTENCY_KEY
from headrace.api.http.idempotency import Recording
from headrace.api.http.journaling import JournaledCall, ServerJournal
from headrace.api.service import Service
from headrace.errors import HeadraceError
from headrace.inference.accounts import Account
from headrace.journal.records import OpenedRequest, ServerFacts

LOG = logging.getLogger("headrace.journal")
AGAIN = (429, 503, 529)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
RESUMED_AT_A_TIME = 1000
LOOK_STARTED_S = 0.02
LOOK_S = 3600.0  # between two looks at what is too old


class Resumption:
    """Makes requests again. Lives on the event loop."""

    def __init__(self, app: ASGIApp, service: Service, journal: ServerJournal) -> None:
        self._app, self._service, self._journal = app, service, journal
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None
        self._aging: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Go on with the requests that an earlier server has left."""
        service, journal = self._service, self._journal
        self._waiting = asyncio.create_task(self._start())
        self._aging = asyncio.create_task(self._age())
        await service.keys.refresh()
        journal.journal.note_server(
            ServerFacts(
                version=__version__,
                isa=_native.isa(),
                started_unix_s=time.time(),
                models={one.name: one.spec.model for one in service.models.entries},
            )
        )
        left = await service.run_in_thread(journal.journal.unfinished)
        found = [one for one in left if one.opened.path]  # others are Python programs
        room = asyncio.Semaphore(RESUMED_AT_A_TIME)
        accounts: dict[str, Account | None] = {}
        for known in found:
            owner = known.opened.owner
            if owner not in accounts:
                accounts[owner] = await service.run_in_thread(partial(service.keys.account_of, owner))
            account = accounts[owner]
            journaled = journal.restored(known, new_call(known.opened, account or service.keys.everybody))
            if account is None:
                LOG.warning("request %s does not go on: its key was revoked", known.opened.request_id)
                journaled.reply.status, journaled.reply.is_whole = 401, True
                journaled.end()
                continue
            if (key := dict(known.opened.headers).get(IDEMPOTENCY_KEY.encode())) is not None:
                recording = await service.idempotent.begin(
                    key.decode("latin-1"), journaled.call, scope_of(known.opened, journaled.call)
                )
            else:
                recording = None
            mine = recording if isinstance(recording, Recording) else None
            task = asyncio.create_task(self._run(journaled, known.opened, mine, room))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if found:
            journal.resumed = len(found)
            LOG.warning("%d requests of an earlier server go on", len(found))

    async def _start(self) -> None:
        """Let all begin once the model is there."""
        while self._service.gate.starting:
            await asyncio.sleep(LOOK_STARTED_S)
        self._started.set()

    async def _age(self) -> None:
        """Forget what is too old."""
        while True:
            self._journal.journal.look_after_age()
            await asyncio.sleep(max(1.0, min(LOOK_S, self._journal.settings.max_age / 10)))

    async def close(self) -> None:
        """Leave what runs for the next start."""
        for task in (self._waiting, self._aging):
            if task is not None:
                task.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self,
        journaled: JournaledCall,
        opened: OpenedRequest,
        recording: Recording | None,
        room: asyncio.Semaphore,
    ) -> None:
        """Make a request again until it is let in."""
        pause_s = FIRST_PAUSE_S
        async with room:
            while True:
                await self._started.wait()  # in the order in which they came
                if not await self._once(journaled, opened, recording):
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if recording is not None:
            recording.end()
        journaled.end()

    async def _once(
        self, journaled: JournaledCall, opened: OpenedRequest, recording: Recording | None
    ) -> bool:
        """Whether the request has to wait for its turn."""
        service = self._service
        call = new_call(opened, journaled.call.account)
        call.journal = journaled.journal
        journaled.answered = call
        if recording is not None:
            recording.call = call
        assert journaled.journal is not None
        journaled.journal.again()
        waits = False

        async def take(message: Message) -> None:
            nonlocal waits
            if message["type"] == "http.response.start":
                call.status, waits = message["status"], message["status"] in AGAIN
                service.bodies.release(call)
            if waits:
                return
            await self._journal.journal.kept()
            await note(journaled.reply.take(message))

        note = nobody if recording is None else recording.sending(nobody)
        with ExitStack() as held:
            held.enter_context(service.gate.readmitted(call))
            held.callback(service.bodies.release, call)
            try:
                receive = receiving(opened.body)
                if recording is not None and recording.digest is None:
                    receive = recording.receiving(receive, scope_of(opened, call))
                await self._app(scope_of(opened, call), receive, take)
            except HeadraceError as error:
                call.fail(error)
            except Exception:
                LOG.exception("request %s does not go on", opened.request_id)
        if not waits:
            journaled.error = call.error
            service.ended(call)
        return waits


def new_call(opened: OpenedRequest, account: Account) -> HttpCall:
    """The call of a request that is made again: with its ids."""
    request_id, nonce = opened.request_id, opened.nonce
    return HttpCall(
        request_id=request_id,
        booking_id=request_id if request_id == f"req_{nonce}" else f"{request_id}.{nonce[:16]}",
        nonce=nonce,
        account=account,
        method=opened.method,
        path=opened.path,
        client=opened.client,
        arrived_unix_s=opened.arrived_unix_s,
        no_store=opened.no_store,
    )


def scope_of(opened: OpenedRequest, call: HttpCall) -> dict[str, Any]:
    """The scope of a request that is made again."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": opened.method,
        "scheme": "http",
        "path": opened.path,
        "raw_path": opened.path.encode(),
        "query_string": opened.query,
        "root_path": "",
        "headers": list(opened.headers),
        "client": None,
        "server": None,
        "headrace.call": call,
    }


def receiving(body: bytes) -> Receive:
    """The body of a request whose client is not there any more, and never leaves."""
    is_read = False

    async def received() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


@asynccontextmanager
async def resuming(app: ASGIApp, service: Service) -> AsyncGenerator[None]:
    """Go on with what an earlier server has left, beside new requests."""
    if service.journal is None:
        yield
        return
    resumption = Resumption(app, service, service.journal)
    try:  # before the first request: one with the same Idempotency-Key must find what goes on
        await resumption.run()
    except Exception:  # new requests are answered all the same
        LOG.exception("requests of an earlier server do not go on")
    verifying = asyncio.create_task(service.journal.journal.verify())
    try:
        yield
    finally:
        verifying.cancel()
        await resumption.close()
