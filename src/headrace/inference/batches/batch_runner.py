"""Runs the lines of batches while there is room, until all are done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from msgspec import Raw, Struct

from headrace.inference.accounts import Account
from headrace.inference.admission import AdmissionGate
from headrace.inference.batches.batch_files import publish
from headrace.inference.batches.batch_lines import LineResponse, reply_line
from headrace.inference.batches.deferral import Deferral, LaterAnswers
from headrace.inference.call_context import derived_id, new_request_id
from headrace.inference.store_threads import StoreThreads
from headrace.storage.batches import Batches, Line, LineState, StoredBatch
from headrace.storage.claim import claim_of
from headrace.storage.sql_store import SqlStore

LOG = logging.getLogger("headrace.batches")

LOOK_IDLE_S, LOOK_BUSY_S = 5.0, 0.25  # how often the store is looked at for what other programs wrote
DEFERRED = 0
RETRIED = (429, 503, 529)
MAX_LAST_TRIES = 20
"""Of a line whose answer is there when its batch is over."""
LONGEST_PAUSE_S = 5.0
PAUSE_AFTER_FAILURE_S = 10.0
LINES_AT_A_TIME = 64


class LineRequest(Struct, frozen=True):
    """A line as it is asked of a handler: `body` is JSON in the words of `endpoint`, `account` of whose key
    the batch is; the key was checked when the batch was made. `work_id` is the same whenever it is run."""

    request_id: str
    endpoint: str
    account: Account
    body: bytes
    work_id: str
    hops: tuple[str, ...] = ()
    deferral: Deferral | None = None


class LineAnswer(Struct, frozen=True):
    """What a line brought, in the words of its endpoint. A refusal that asks to wait says how long. Status
    DEFERRED: a provider's batch will answer it."""

    status: int
    body: bytes
    pause_s: float = 1.0


AnswerLine = Callable[[LineRequest], Awaitable[LineAnswer]]
"""Answers a line at the lowest priority. Failures are answers, too: it raises nothing."""


class BatchRunner:
    """Lives on the event loop. Of several servers with one store only one runs its batches.

    A line is a request with the lowest priority. Lines run while fewer than half of the
    sequences that the engine computes at a time are taken, by requests and lines together.
    """

    def __init__(
        self,
        answer: AnswerLine,
        account_of: Callable[[str], Account | None],
        *,
        read_keys: Callable[[], Awaitable[None]],
        database: SqlStore,
        threads: StoreThreads,
        gate: AdmissionGate,
        max_num_seqs: int,
        later: LaterAnswers | None = None,
    ) -> None:
        """`later` has lines answered by providers' batches. `account_of` is the account of an owner in the
        store; None where its key is gone, as far as `read_keys` has found. It reads the store."""
        self._answer, self._account_of, self._read_keys = answer, account_of, read_keys
        self._database, self._threads, self._gate = database, threads, gate
        self._batches, self._later = Batches(database), later
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()  # by their owners
        self._closing: set[str] = set()  # what is left to do is not interrupted
        self._most = max(1, max_num_seqs // 2)
        self._running = 0
        self._news = asyncio.Event()
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()
        self._claim = claim_of(database, "batches")

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Run batches, also those that an earlier process has left, until the block ends."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            self._interrupt()
            await asyncio.gather(watching, *self._tasks.values(), return_exceptions=True)
            await self._threads.run(self._claim.close)

    def look(self) -> None:
        """There is something new in the store."""
        self._news.set()

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._look()
            except Exception:
                LOG.exception("the store of batches cannot be read: they wait")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_BUSY_S if self._tasks else LOOK_IDLE_S):
                    await self._news.wait()

    async def _look(self) -> None:
        if self._gate.draining:
            self._interrupt()
        if self._gate.draining or not self._database.exists:
            return
        if not await self._threads.run(self._claim.held):
            self._interrupt()  # another server goes on with what this one could not say that it has
            return
        opened = await self._threads.run(self._batches.open)
        if not opened:
            return
        await self._read_keys()  # nobody may ask this server for anything else
        for batch, account in await self._threads.run(lambda: self._with_accounts(opened)):
            task = self._tasks.get(batch.id)
            if task is None and (account is not None or time.time() >= batch.expires_s):
                self._tasks[batch.id] = asyncio.create_task(self._run(batch, account))
            elif task is not None and account is None and batch.id not in self._closing:
                task.cancel()  # its key was revoked
            elif task is not None and batch.status == "cancelling" and batch.id not in self._cancelled:
                self._cancelled.add(batch.id)
                if batch.id not in self._closing:
                    task.cancel()

    def _with_accounts(self, opened: Sequence[StoredBatch]) -> list[tuple[StoredBatch, Account | None]]:
        """Batches that have not ended, each with the account whose key made it."""
        return [(batch, self._account_of(batch.owner)) for batch in opened]

    def _interrupt(self) -> None:
        """Stop the lines; they run again when the server does."""
        for batch_id, task in self._tasks.items():
            if batch_id not in self._closing:
                task.cancel()

    async def _run(self, batch: StoredBatch, account: Account | None) -> None:
        """One batch from where it stands to its end; that of a key which is gone has expired."""
        try:
            outcome = batch.outcome or "expired"
            if batch.outcome is None and account is not None:
                outcome = await self._outcome(batch, account.for_background())
            self._closing.add(batch.id)
            if batch.outcome is None:
                await self._threads.run(lambda: self._batches.close(batch.id, outcome))
            await asyncio.to_thread(publish, self._database, batch, outcome)
        except Exception:
            LOG.exception("the batch %s stands still; it goes on in a while", batch.id)
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        finally:
            self._closing.discard(batch.id)
            self._cancelled.discard(batch.id)
            del self._tasks[batch.id]

    async def _outcome(self, batch: StoredBatch, account: Account) -> str:
        """Run what is pending; how the batch ended."""
        outcome = "cancelled"
        if batch.status != "cancelling":
            try:
                async with asyncio.timeout(max(0.0, batch.expires_s - time.time())):
                    await self._run_lines(batch, account)
                    while self._later is not None and await self._later.advance(batch):
                        await self._run_lines(batch, account)
                return "completed"
            except TimeoutError:
                outcome = "expired"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if batch.id not in self._cancelled or self._gate.draining or task is None:
                    raise
                task.uncancel()
        if self._later is not None:
            for line in await self._later.give_up(batch):
                await self._run_line(batch, account, line, is_over=True)
        return outcome

    async def _run_lines(self, batch: StoredBatch, account: Account) -> None:
        places, after = asyncio.Semaphore(self._most), 0
        async with asyncio.TaskGroup() as group:
            while lines := await self._threads.run(
                partial(self._batches.pending, batch.id, after=after, limit=LINES_AT_A_TIME)
            ):
                for line in lines:
                    await places.acquire()
                    task = group.create_task(self._run_line(batch, account, line))
                    task.add_done_callback(lambda _: places.release())
                    after = line.place

    async def _run_line(
        self, batch: StoredBatch, account: Account, line: Line, *, is_over: bool = False
    ) -> None:
        """Run a line until it has an answer that is one, and keep that, or until a provider's batch has it.
        `is_over`: the batch ends, and this line has a provider's answer."""
        work_id, tries = f"req_{derived_id(batch.id, line.place)}", 0
        hops = tuple(hop for hop in batch.hops.split(",") if hop)
        while True:
            request_id, tries = new_request_id(), tries + 1
            deferral = None if self._later is None else await self._later.begin(batch, line, is_over=is_over)
            async with self._room():
                body = line.body or b""
                answer = await self._answer(
                    LineRequest(request_id, batch.endpoint, account, body, work_id, hops, deferral)
                )
            if self._later is not None and deferral is not None:
                if answer.status == DEFERRED and deferral.asked is not None:
                    await self._later.keep(batch, line, deferral.asked)
                    return
                if answer.status in RETRIED and deferral.taken and not is_over:
                    await self._later.forget(batch, line)
            if answer.status not in RETRIED or (is_over and tries == MAX_LAST_TRIES):
                break
            await asyncio.sleep(min(answer.pause_s, LONGEST_PAUSE_S))
        state = LineState.COMPLETED if answer.status == 200 else LineState.FAILED
        response = LineResponse(answer.status, request_id, Raw(answer.body))
        reply = reply_line(line.custom_id, response)
        await self._threads.run(lambda: self._batches.record(batch.id, line.place, state, reply))

    @asynccontextmanager
    async def _room(self) -> AsyncGenerator[None]:
        """Wait until a line may run: first come, first served."""
        async with self._turn:
            while self._running >= self._allowed():
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_BUSY_S):
                        await self._freed.wait()
            self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._freed.set()

    def _allowed(self) -> int:
        closed = self._gate.starting or self._gate.draining
        return 0 if closed else self._most - self._gate.open_calls
