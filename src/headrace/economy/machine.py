"""The time of this machine at its owner's price, split over the requests that it was spent on.

The rule: at every moment the price is divided equally among the requests that are accepted and have not
ended. Their model computes them in the same steps, in which a row costs about the same for every request.
Moments without a request are idle and have an account of their own, so that requests and idle time are
together the machine's price to the nano-dollar. What waits for its turn counts as accepted: it pays for
being one of many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec import Struct
from msgspec.structs import replace

from headrace.economy.entries import Entry
from headrace.economy.ledger import Ledger
from headrace.economy.money import NANO, nano_of
from headrace.economy.rates import BillLine
from headrace.engine.request import Usage
from headrace.errors import StoreError
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Batch, EventBatches, Handler, Unchanged
from headrace.inference.requests import InferenceRequest
from headrace.storage.sql_store import SqlStore

LOG = logging.getLogger("headrace.economy")
IDLE, MACHINE_TIME = "idle", "machine_time"
IDLE_EVERY_S = 3600.0
"""Idle time is booked this often, while there are requests, and at the end."""
HOUR_NS = 3600 * NANO


class MachineShare(Struct):
    """What a request has got of the machine so far: nano-dollars, and the nanoseconds that it was there."""

    nano_usd: int = 0
    nanoseconds: int = 0


class MachineMeter:
    """Divides the price of the machine among who uses it. Exact: what a division leaves over goes to the
    next.

    `clock` returns nanoseconds that never go back. Lives on one thread.
    """

    def __init__(self, nano_usd_per_hour: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._price, self._clock = nano_usd_per_hour, clock
        self._at_ns = clock()
        self._rest = 0  # nano-dollars times nanoseconds of an hour that are not given to anyone yet
        self._undivided = 0
        self._running: dict[int, MachineShare] = {}
        self.idle = MachineShare()

    def begin(self, share: MachineShare) -> None:
        """A request uses the machine from now on."""
        self._pass()
        self._running[id(share)] = share

    def end(self, share: MachineShare) -> None:
        """It does not any more; the share is final."""
        self._pass()
        del self._running[id(share)]
        if not self._running and self._undivided:
            share.nano_usd += self._undivided
            self._undivided = 0

    def take_idle(self) -> MachineShare:
        """The idle time until now, which is then counted anew."""
        self._pass()
        taken, self.idle = self.idle, MachineShare()
        return taken

    def _pass(self) -> None:
        now_ns = self._clock()
        passed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        nano_usd, self._rest = divmod(self._rest + passed_ns * self._price, HOUR_NS)
        if not self._running:
            self.idle.nano_usd += nano_usd
            self.idle.nanoseconds += passed_ns
            return
        each, self._undivided = divmod(self._undivided + nano_usd, len(self._running))
        for share in self._running.values():
            share.nano_usd += each
            share.nanoseconds += passed_ns


class MachineRecorder:
    """Records the shares of requests, and the idle time, in a thread of its own."""

    def __init__(self, ledger: Ledger, meter: MachineMeter, clock: Callable[[], float] = time.time) -> None:
        self._ledger, self._meter, self._clock = ledger, meter, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-machine")
        self._idle_from_s = clock()

    def begin(self) -> MachineShare:
        """A request begins."""
        share = MachineShare()
        self._meter.begin(share)
        return share

    def end(
        self, share: MachineShare, call: CallContext, usages: Sequence[Usage], number: int
    ) -> Future[None]:
        """A request, or part `number` of it, has ended. Done when that is written."""
        self._meter.end(share)
        call.machine_nano_usd += share.nano_usd
        now_s = self._clock()
        cached = sum(usage.cached_tokens for usage in usages)
        counts = {
            "input": sum(usage.prompt_tokens for usage in usages) - cached,
            "cache_read": cached,
            "output": sum(usage.completion_tokens for usage in usages),
        }
        entry = Entry(
            kind="machine",
            status="measured",
            started_s=now_s - share.nanoseconds / NANO,
            booked_s=now_s,
            request_id=call.work_id,
            attempt=number,
            key_name=call.account.name,
            route=call.route,
            target=call.model,
            model=call.model,
            outcome="ok" if call.error is None else str(call.error.code or call.error.kind),
            billed="yes",
            elapsed_s=share.nanoseconds / NANO,
            first_content_s=call.first_token_s,
            price_source="node_usd_per_hour",
        )
        lines = [BillLine(MACHINE_TIME, share.nanoseconds // 10**6, share.nano_usd)]
        lines += [BillLine(name, count, 0) for name, count in counts.items() if count]
        is_resumed = call.journal is not None and call.journal.is_resumed
        may_be_there = is_resumed or call.work_id != call.booking_id
        written = self._thread.submit(self._write, entry, lines, may_be_there)
        if now_s - self._idle_from_s > IDLE_EVERY_S:
            self._book_idle()
        return written

    def close(self) -> None:
        """Book the idle time and what is not written yet."""
        self._book_idle()
        self._thread.shutdown(wait=True)

    def _book_idle(self) -> None:
        idle, self._idle_from_s = self._meter.take_idle(), self._clock()
        if not idle.nano_usd:
            return
        entry = Entry(
            kind="machine",
            status="measured",
            started_s=self._idle_from_s,
            booked_s=self._idle_from_s,
            model=IDLE,
            elapsed_s=idle.nanoseconds / NANO,
            price_source="node_usd_per_hour",
        )
        self._thread.submit(self._write, entry, [BillLine(IDLE, idle.nanoseconds // 10**6, idle.nano_usd)])

    def _write(self, entry: Entry, lines: Sequence[BillLine], may_be_there: bool = False) -> None:
        """`may_be_there`: an earlier process was killed between booking it and noting its end. What it took
        a second time was for nobody."""
        try:
            with self._ledger.database.transaction():
                if may_be_there and self._ledger.has_machine_time(entry.request_id, entry.attempt):
                    entry = replace(entry, request_id="", attempt=0, key_name="", target="", model=IDLE)
                    total = sum(line.nano_usd for line in lines)
                    lines = [BillLine(IDLE, next(one.quantity for one in lines), total)]
                self._ledger.add(entry, lines)
        except StoreError as error:
            total = sum(line.nano_usd for line in lines)
            LOG.error("%d nano-dollars of this machine are not booked: %s", total, error.message)


def machine_recorder(database: SqlStore, usd_per_hour: float) -> MachineRecorder | None:
    """The recorder of a machine with this price; None where it costs nothing."""
    if not usd_per_hour:
        return None
    return MachineRecorder(Ledger(database), MachineMeter(nano_of(usd_per_hour)))


class MachineHandler:
    """Records what requests take of this machine."""

    def __init__(self, inner: Handler, recorder: MachineRecorder) -> None:
        self._inner, self._recorder = inner, recorder

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        share: MachineShare | None = None
        before = len(call.usages)

        def started(batch: Batch) -> None:
            nonlocal share
            share = self._recorder.begin()

        def ended() -> None:
            if share is None:
                return
            one, number, journal = share, before + 1, call.journal
            release = None if journal is None else journal.hold()

            def record() -> None:
                written = self._recorder.end(one, call, call.usages[before:], number)
                if journal is not None and release is not None:
                    journal.release_after(written, release)

            call.when_ended(record)

        return Unchanged(self._inner.handle(request, call), started=started, ended=ended)
