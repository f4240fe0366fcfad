"""The journal while a server runs: what is written of each request, and when others may see it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from headrace.engine.request import EngineEvent, EngineRequest
from headrace.journal.frames import tag_of
from headrace.journal.known_requests import KnownRequest, KnownRun, known_requests
from headrace.journal.log import Log
from headrace.journal.reader import JournalUnwritable, RecordKind
from headrace.journal.records import (
    EndedReply,
    OpenedRequest,
    RunBegun,
    ServerFacts,
    encode,
    encode_batch,
    ended_request,
    run_key,
    shared_id,
)

LOG = logging.getLogger("headrace.journal")
FsyncPolicy = Literal["off", "crash", "power"]
FullPolicy = Literal["refuse", "pause"]
LAZY_S, LAZY_BYTES = 0.2, 256 * 1024
AGAIN_S = 1.0  # between two tries to write to a disk that is full

Action = Callable[[], None]


class RecordedRun:
    """One run of the model for a request. `known` are the events that are there already, in their order, and
    `seeds` those of requests without one. What computes now is to be what computed them."""

    __slots__ = ("_call", "_run", "computed_by", "computes_by", "known", "seeds")

    def __init__(self, call: CallJournal, run: KnownRun, computes_by: str, seeds: Sequence[int]) -> None:
        self._call, self._run, self.known = call, run.number, run.batches
        self.computed_by, self.computes_by, self.seeds = run.fingerprint, computes_by, seeds

    def record(self, index: int, events: Sequence[EngineEvent], then: Action) -> None:
        """Record events; `then` is called as soon as they may be seen."""
        payload = encode_batch(self._run, index, events)
        if payload is not None:
            self._call.events(payload)
        self._call.journal.after(then)


class CallJournal:
    """What is written of one request. It has ended when everybody who holds it has released it."""

    def __init__(
        self, journal: Journal, number: int, opened: OpenedRequest, known: KnownRequest | None = None
    ) -> None:
        self.journal, self.number, self.opened = journal, number, opened
        self.is_resumed = known is not None
        self.fingerprint = ""  # of the model that was asked last
        self.is_interrupted = False
        """Whether it was ended by the server's own end."""
        self._gap = journal.gap
        self._runs = 0 if known is None else max((run.number + 1 for _, run in known.runs), default=0)
        self._known: dict[tuple[bytes, int], KnownRun] = {}
        self._next_tag = 0 if known is None else known.next_tag
        self._seen = Counter[bytes]()
        self._times_s, self._asked = [] if known is None else known.times_s, 0
        self._holders = 1
        self._bookings = set[asyncio.Future[None]]()
        self._ending: Callable[[], EndedReply | None] | None = None
        times = Counter[bytes]()
        if known is not None and known.has_gap:
            journal.log.append(RecordKind.RESTARTED, number, self._next_tag, b"")  # before what comes next
        for key, run in () if known is None else known.runs:
            self._known[key, times[key]] = run
            times[key] += 1

    def begin_run(
        self, requests: Sequence[EngineRequest], model: str, fingerprint: str, isa: str
    ) -> RecordedRun:
        """The model is about to compute these for the request, with that instruction set."""
        self.fingerprint, computes_by = fingerprint, f"{fingerprint} {isa}"
        key = run_key(requests)
        occurrence = self._seen[key]
        self._seen[key] += 1
        seeds = [self._seed(key, occurrence, index) for index in range(len(requests))]
        run = self._known.get((key, occurrence))
        if run is None:
            number, self._runs = self._runs, self._runs + 1
            self._known[key, occurrence] = run = KnownRun(number, computes_by)
            if self._writes:
                begun = encode(RunBegun(number, key, model, computes_by))
                self.journal.append(RecordKind.RUN, self.number, self._tag(), begun)
        return RecordedRun(self, run, computes_by, seeds)

    def again(self) -> None:
        """The request is made once more, from the start."""
        self._seen.clear()
        self._asked = 0

    def events(self, payload: bytes) -> None:
        """Record the events of a run."""
        if self._writes:
            self.journal.append(RecordKind.EVENTS, self.number, self._tag(), payload)

    def time_s(self) -> float:
        """The time, which a client is told: the same where it was told before the server was killed."""
        place, self._asked = self._asked, self._asked + 1
        if place == len(self._times_s):
            self._times_s.append(time.time())
            if self._writes:
                payload = repr(self._times_s[place]).encode()
                self.journal.append(RecordKind.TIMED, self.number, place, payload)
                self.journal.write()
        return self._times_s[place]

    def hold(self) -> Action:
        """The request goes on after its HTTP call has ended, until what this returns is called."""
        self._holders += 1
        return self._release

    def release_after(self, written: Future[None], release: Action) -> None:
        """Release what holds the request as soon as its line of the ledger is written, or has failed: its end
        comes after it in the journal, so that a server that is killed between them writes the line later."""
        waiting = asyncio.wrap_future(written)
        self._bookings.add(waiting)
        self.journal.bookings.add(waiting)

        def booked(_: asyncio.Future[None]) -> None:
            self._bookings.discard(waiting)
            self.journal.bookings.discard(waiting)
            release()

        waiting.add_done_callback(booked)

    async def booked(self) -> None:
        """Wait until what the ledger was given of it is written."""
        if self._bookings:
            await asyncio.wait(self._bookings)

    def end(self, ending: Callable[[], EndedReply | None]) -> None:
        """The HTTP call has ended; `ending` says how once all has. None: it is to go on at the next start."""
        self._ending = ending
        self._release()

    def _release(self) -> None:
        self._holders -= 1
        if self._holders or self._ending is None:
            return
        ended = self._ending()
        if ended is not None and not self.journal.is_closed:
            self.journal.ended(self, ended)

    @property
    def is_kept(self) -> bool:
        """Whether all that came of it is recorded."""
        return self._gap == self.journal.gap

    @property
    def _writes(self) -> bool:
        return self.is_kept and not self.journal.is_closed

    def _tag(self) -> int:
        tag, self._next_tag = self._next_tag, self._next_tag + 1
        return tag

    def _seed(self, key: bytes, occurrence: int, index: int) -> int:
        text = f"{self.opened.nonce}/{key.hex()}/{occurrence}/{index}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Journal:
    """Writes the records of one turn of the event loop together, and then calls who waits for that.

    Lives on the event loop. Where the disk takes nothing, requests go on, and what they give is not recorded
    any more: see `check`.
    """

    def __init__(self, log: Log, *, fsync: FsyncPolicy = "crash", on_full: FullPolicy = "refuse") -> None:
        self.log, self._fsync, self._on_full = log, fsync, on_full
        self.gap = 0
        """How often records were lost: a request that began before writes no more."""
        self.failure: JournalUnwritable | None = None
        self.is_closed = False
        self.dropped = self.records = self.written_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._actions: list[Action] = []
        self._is_scheduled = self._is_syncing = False
        self._pending_ends: list[int] = []
        self._lost_ends: list[int] = []  # of requests whose ends could not be written
        self._tried_s = 0.0
        self._next_number = log.next_number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-journal")
        self._syncing: asyncio.Future[None] | None = None
        self._caring: asyncio.Future[None] | None = None
        self._next_care: asyncio.Future[None] | None = None
        self._care_turn = asyncio.Lock()
        self.bookings = set[asyncio.Future[None]]()
        """Lines of the ledger that are being written; the requests have ended after them."""

    def open(self, opened: OpenedRequest) -> CallJournal:
        """A new request. Raises JournalUnwritable where the disk is full and requests are refused then."""
        number, self._next_number = self._next_number, self._next_number + 1
        call = CallJournal(self, number, opened)
        self.append(RecordKind.OPENED, number, tag_of(shared_id(opened.request_id)), encode(opened))
        return call

    def begin(self, opened: OpenedRequest) -> CallJournal:
        """As `open`, outside of the event loop: it is written at once. JournalUnwritable."""
        number, self._next_number = self._next_number, self._next_number + 1
        payload = encode(opened)
        self.log.append(RecordKind.OPENED, number, tag_of(shared_id(opened.request_id)), payload)
        self.log.write()
        return CallJournal(self, number, opened)

    def check(self) -> str | None:
        """Whether new requests may come: JournalUnwritable, or a warning for them, or None."""
        if time.monotonic() - self._tried_s > AGAIN_S:
            self._tried_s = time.monotonic()
            self.log.look_for_removal()
            if self.failure is not None or self.log.is_removed:
                self.log.take_reserve()
                self.flush()
        if self.failure is None:
            return None
        if self._on_full == "refuse":
            raise self.failure
        return f"{self.failure.message}; this request would be lost if the server were killed"

    def append(self, kind: RecordKind, number: int, tag: int, payload: bytes) -> None:
        """Hold a record until the end of this turn of the loop."""
        self.records += 1
        self.written_bytes += len(payload)
        self.log.append(kind, number, tag, payload)
        self._schedule()

    def write(self) -> None:
        """Write what was appended now: somebody is about to see it."""
        if self._fsync != "off":
            self.flush()

    def after(self, action: Action) -> None:
        """Call it as soon as everything that was appended before is kept as the settings say."""
        if self._fsync == "off" or self.is_closed:
            action()
            return
        self._actions.append(action)
        self._schedule()

    async def kept(self) -> None:
        """Wait until everything that was appended is kept."""
        done = asyncio.Event()
        self.after(done.set)
        await done.wait()

    def ended(self, call: CallJournal, ended: EndedReply) -> None:
        """A request has ended."""
        if call.opened.no_store:
            self.append(RecordKind.FORGOTTEN, call.number, 0, b"")
            return
        tag = tag_of(call.opened.nonce)
        self.append(RecordKind.ENDED, call.number, tag, encode(ended))
        listed = encode(ended_request(call.opened, ended))
        self.append(RecordKind.LISTED, call.number, tag_of(call.opened.owner), listed)
        self._pending_ends.append(call.number)

    async def forget(self, numbers: Sequence[int]) -> None:
        """Delete requests; their bytes are gone from the files when this returns."""
        self.flush()
        self.log.forget(numbers, ends_file=False)
        if self._next_care is None:
            self._next_care = asyncio.ensure_future(self._care_again())
        await asyncio.shield(self._next_care)

    async def _care_again(self) -> None:
        """Who deletes while files are looked after shares the next time with others."""
        async with self._care_turn:
            self._next_care = None
            self.log.end_file()
            await self._in_thread(self.log.care)

    def note_server(self, facts: ServerFacts) -> None:
        """A server begins."""
        self.append(RecordKind.SERVER, 0, 0, encode(facts))

    def unfinished(self) -> list[KnownRequest]:
        """The requests that an earlier process has left, in the order in which they came."""
        return list(known_requests(self.log, self.log.unfinished()))

    def look_after_age(self) -> None:
        """Called now and then, also while no requests come: what is too old is to go."""
        self.log.begin_new_file_if_old()
        self.log.needs_care = True
        self._schedule()

    async def verify(self) -> None:
        """Look for damage in all files."""
        await self._in_thread(self.log.verify)

    async def close(self) -> None:
        """Write what waits, and let the folder go."""
        if self.bookings:
            await asyncio.wait(self.bookings)
        self.flush()
        self.is_closed = True
        if self._caring is not None:
            await asyncio.wait([self._caring])
        self._thread.shutdown()
        try:
            if self._fsync == "power":
                self.log.sync()
            self.log.close()
        except JournalUnwritable as error:
            LOG.error("%s", error.message)

    def close_now(self, call: CallJournal | None, ended: EndedReply | None = None) -> None:
        """Note the end of the one request there is, and let the folder go, after the event loop has ended."""
        if self.is_closed:
            return
        self.is_closed = True
        self._thread.shutdown()
        try:
            if call is not None and ended is not None:
                self.log.append(RecordKind.ENDED, call.number, tag_of(call.opened.nonce), encode(ended))
                self.log.write()
            self.log.care()
            self.log.close()
        except JournalUnwritable as error:
            LOG.error("%s", error.message)

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if self._fsync == "off":
            loop.call_later(LAZY_S, self.flush)
        else:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is held, whatever the settings say: before somebody reads what has been recorded."""
        self._is_scheduled = False
        ends, self._pending_ends = self._pending_ends, []
        actions, self._actions = self._actions, []
        try:
            for number in self._lost_ends:
                self.log.append(RecordKind.FORGOTTEN, number, 0, b"")
            self.log.write()
            self._lost_ends = []
            self._note_reserve()
        except JournalUnwritable as error:
            self._lost_ends += ends
            self._lost(error)
        if self.log.needs_care and (self._caring is None or self._caring.done()):
            self._caring = asyncio.ensure_future(self._in_thread(self.log.care))
        if self._fsync == "power" and actions:
            self._actions[:0] = actions
            self._sync()
            return
        for action in actions:
            action()

    def _note_reserve(self) -> None:
        """Everything is written. Where that took the reserve, no more requests may come."""
        if self.log.has_reserve:
            self.failure = None
        elif self.failure is None:
            self.failure = JournalUnwritable(f"the disk of the journal {self.log.folder} is full")
            LOG.error("%s; requests that run are recorded in its reserve", self.failure.message)

    def _lost(self, error: JournalUnwritable) -> None:
        """Records are lost."""
        if self.failure is None:
            LOG.error("%s; what requests give is not recorded until it does", error.message)
        self.failure = error
        self.gap += 1
        self.dropped += 1

    def _sync(self) -> None:
        """Sync in the thread; meanwhile more comes, for the next time."""
        if self._is_syncing:
            return
        self._is_syncing = True
        actions, self._actions = self._actions, []

        async def sync() -> None:
            try:
                await self._in_thread(self.log.sync)
            except JournalUnwritable as error:
                self._lost(error)
            self._is_syncing = False
            for action in actions:
                action()
            if self._actions and not self._is_scheduled:
                self._sync()

        self._syncing = asyncio.ensure_future(sync())

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)


class UnkeptJournal(Journal):
    """Keeps nothing: for requests that are made again to be compared."""

    def __init__(self) -> None:
        self.gap, self.is_closed, self._fsync = 0, True, "off"
