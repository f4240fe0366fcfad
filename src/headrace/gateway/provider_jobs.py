"""Lines of batches as batches of providers: collected, sent, asked for, brought back."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from msgspec import Struct

from headrace.inference.attempts import Attempt, SpendRecorder
from headrace.inference.batches.deferral import Deferral, DeferredLine, LaterAnswer
from headrace.inference.call_context import new_request_id
from headrace.inference.store_threads import StoreThreads
from headrace.providers.batches.api import BatchApi, BatchLine, LineResult
from headrace.providers.failure import AttemptFailed, Failure
from headrace.storage.batches import Line, StoredBatch
from headrace.storage.provider_lines import CREATING, NEW, RUNNING, ProviderJob, ProviderLines, WaitingLine
from headrace.storage.sql_store import SqlStore
from headrace.struct_types import thread_safe

if TYPE_CHECKING:
    from headrace.gateway.routes import Route

LOG = logging.getLogger("headrace.batches")

T = TypeVar("T")
MAX_JOB_LINES, MAX_JOB_BYTES = 25_000, 32 * 2**20
MAX_ROUNDS = 3
"""Batches of a provider that a line is put into; then it is sent by itself."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 60.0
DEFERRED_S = 31 * 86_400.0
"""How long money is held for a line: longer than any batch lasts."""
GIVE_UP_S = 900.0
"""How long a provider has to end a batch that was cancelled."""
_encoder = msgspec.msgpack.Encoder()


class RemoteTargets(Protocol):
    """What is known of remote models."""

    spend: SpendRecorder | None

    def find(self, name: str | None) -> Route | None:
        """The remote model of that name."""
        ...

    def batch_api(self, target: str) -> BatchApi | None:
        """The batches of a target's provider. Raises AttemptFailed where there is no key."""
        ...


class ProviderJobs:
    """See `LaterAnswers`. Lives on the event loop."""

    def __init__(self, database: SqlStore, threads: StoreThreads, targets: RemoteTargets) -> None:
        self._store, self._threads, self._targets = ProviderLines(database), threads, targets
        self._said: dict[str, str] = {}
        self._known: set[str] = set()  # batches whose money is held, whatever becomes of this process

    async def begin(self, batch: StoredBatch, line: Line, *, is_over: bool) -> Deferral | None:
        """See `LaterAnswers.begin`."""
        if not self._is_for_batches(line.body or b""):
            return None
        await self._hold_again(batch)
        found = await self._run(lambda: self._store.find(batch.id, line.place))
        answer = None if found is None or found.status is None else _answer(found)
        if found is not None and answer is not None and not answer.status:
            await self._release(found, "no")
            answer = None
        rounds = 0 if found is None else found.rounds
        otherwise = "fail" if is_over else "defer" if rounds < MAX_ROUNDS else "send"
        return Deferral(answer, otherwise)

    def _is_for_batches(self, body: bytes) -> bool:
        try:
            name = msgspec.json.decode(body, type=thread_safe(_Named)).model
            route = self._targets.find(name)
        except Exception:  # the line fails by itself
            return False
        return route is not None and any(getattr(one, "batches", False) for one in route.targets)

    async def keep(self, batch: StoredBatch, line: Line, asked: DeferredLine) -> None:
        """See `LaterAnswers.keep`."""
        await self._run(
            lambda: self._store.wait(
                *(batch.id, line.place),
                target=asked.target,
                path=asked.path,
                asked=_encoder.encode(asked),
                size=len(asked.body),
            )
        )
        await self._hold(asked)

    async def _hold_again(self, batch: StoredBatch) -> None:
        """Hold the money of lines that wait, once: an earlier process may have ended after it had kept a
        line, and before it held its money beyond its own end. In the other order money without a line would
        be held."""
        if batch.id in self._known:
            return
        self._known.add(batch.id)
        for line in await self._run(lambda: self._store.uncollected(batch.id)):
            await self._hold(_asked(line))

    async def _hold(self, asked: DeferredLine) -> None:
        if self._targets.spend is not None:
            await self._targets.spend.keep(asked.hold, DEFERRED_S)

    async def forget(self, batch: StoredBatch, line: Line) -> None:
        """See `LaterAnswers.forget`."""
        await self._run(lambda: self._store.forget(batch.id, line.place))

    async def advance(self, batch: StoredBatch) -> bool:
        """See `LaterAnswers.advance`."""
        await self._hold_again(batch)
        await self._run(lambda: self._collect(batch))
        pause_s = FIRST_PAUSE_S
        while jobs := await self._run(lambda: self._store.jobs(batch.id)):
            ended = [await self._moved(job, batch.hops) for job in jobs]
            if any(ended):
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
        return False

    async def give_up(self, batch: StoredBatch) -> Sequence[Line]:
        """See `LaterAnswers.give_up`."""
        until_s, pause_s = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S
        asked = set[str]()
        while jobs := await self._run(lambda: self._store.jobs(batch.id)):
            for job in jobs:
                if job.state == NEW:
                    await self._end(job)
                elif job.id not in asked and job.state == RUNNING and await self._cancelled(job):
                    asked.add(job.id)
                else:
                    await self._moved(job, batch.hops, begins=False)
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
        may_be_billed = {line.place for job in jobs for line in await self._lines(job)}
        for line in await self._run(lambda: self._store.unanswered(batch.id)):
            await self._release(line, "maybe" if line.place in may_be_billed else "no")
        return await self._run(lambda: self._store.answered(batch.id))

    async def _release(self, line: WaitingLine, billed: str) -> None:
        """Book a line that was given up, in the place of the money for it."""
        asked, spend = _asked(line), self._targets.spend
        if spend is None:
            return
        api = self._targets.find(asked.target)
        target = next((one for one in api.targets if one.name == asked.target), None) if api else None
        provider = getattr(target, "provider", None)
        await spend.settle(
            asked.hold,
            Attempt(
                request_id=new_request_id(),
                number=1,
                kind="first",
                account="",
                target=asked.target,
                provider="" if provider is None else provider.name,
                provider_model=getattr(target, "model", ""),
                started_unix_s=asked.started_unix_s,
                elapsed_s=time.time() - asked.started_unix_s,
                outcome="cancelled",
                billed=billed,  # type: ignore[arg-type]
                processing="batch",
            ),
        )

    def _collect(self, batch: StoredBatch) -> None:
        """Put the lines that wait into jobs."""
        for target, path, places in _parts(self._store.unsent(batch.id)):
            self._store.add_job(f"hj{os.urandom(12).hex()}", batch.id, target, path, places)

    async def _moved(self, job: ProviderJob, hops: str, *, begins: bool = True) -> bool:
        """Take a job one step further; whether it has ended. What fails is tried again later."""
        try:
            api = self._targets.batch_api(job.target)
            if api is None:
                raise AttemptFailed(
                    Failure(phase="connect", kind="missing", message="is no target with batches any more")
                )
            if job.state in (NEW, CREATING):
                return not await self._created(api, job, hops, begins=begins)
            state = await api.state(job.remote_id)
            if not state.is_ended:
                return False
            if state.error:
                LOG.warning("the batch %s at %s failed: %s", job.remote_id, job.target, state.error)
            async for results in api.results(state):
                found = list(_places(job, results))
                await self._run(lambda found=found: self._store.answer(job, found))
            return await self._end(job)
        except AttemptFailed as error:
            return await self._failed(job, error.failure)

    async def _failed(self, job: ProviderJob, failure: Failure) -> bool:
        """Whether a failure ends a job: its lines then have no answer."""
        said = f"{job.target!r} {failure.message}"
        if self._said.get(job.id) != said:
            self._said[job.id] = said
            LOG.warning("a batch for the target %s; its lines wait", said)
        is_refused = failure.kind in ("invalid", "missing", "content", "context")
        return await self._end(job, is_refused=True) if is_refused else False

    async def _end(self, job: ProviderJob, *, is_refused: bool = False) -> bool:
        self._said.pop(job.id, None)
        left = await self._run(lambda: self._store.end(job))
        if left and is_refused:
            LOG.warning("%d lines of a batch for %s are sent again", left, job.target)
        return True

    async def _created(self, api: BatchApi, job: ProviderJob, hops: str, *, begins: bool) -> bool:
        """Begin a job at its provider, once, also where an earlier try was not seen to its end. Without
        `begins` only look whether that one did; where not, the job ends: False."""
        lines = [BatchLine(f"{job.id}-{one.place}", _asked(one).body) for one in await self._lines(job)]
        upload_id, remote_id = job.upload_id, None
        if job.state == CREATING:
            known = await self._run(self._store.known_ids)
            remote_id = await api.find(upload_id, len(lines), job.created_s, known)
        else:
            upload_id = await api.upload(job.id, job.path, lines)
            await self._run(lambda: self._store.update(job.id, CREATING, upload_id=upload_id))
        if remote_id is None and not begins:
            return not await self._end(job)
        if remote_id is None:
            passed = [hop for hop in hops.split(",") if hop]
            remote_id = await api.create(job.id, job.path, upload_id, lines, passed)
        created = remote_id
        await self._run(lambda: self._store.update(job.id, RUNNING, remote_id=created))
        LOG.info("%d lines are the batch %s of the target %s", len(lines), created, job.target)
        return True

    async def _cancelled(self, job: ProviderJob) -> bool:
        """Ask the provider to cancel; whether it has taken note."""
        try:
            api = self._targets.batch_api(job.target)
            if api is not None:
                await api.cancel(job.remote_id)
        except AttemptFailed as error:  # it may have ended meanwhile
            await self._failed(job, error.failure)
            return error.failure.kind in ("invalid", "missing")
        return True

    async def _lines(self, job: ProviderJob) -> list[WaitingLine]:
        return await self._run(lambda: self._store.lines(job))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._threads.run(work)


class _Named(Struct):
    model: str | None = None


def _asked(line: WaitingLine) -> DeferredLine:
    return msgspec.msgpack.decode(line.asked, type=thread_safe(DeferredLine))


def _answer(line: WaitingLine) -> LaterAnswer:
    asked = _asked(line)
    return LaterAnswer(
        target=asked.target,
        hold=asked.hold,
        started_unix_s=asked.started_unix_s,
        status=line.status or 0,
        body=line.answer or b"",
    )


def _places(job: ProviderJob, results: Sequence[LineResult]) -> Iterator[tuple[int, int, bytes]]:
    """What results say of lines of a job; others are not ours."""
    for one in results:
        name, _, place = one.custom_id.rpartition("-")
        if name == job.id and place.isascii() and place.isdigit() and len(place) < 10 and one.status:
            yield int(place), one.status, one.body


def _parts(lines: Sequence[tuple[str, str, int, int]]) -> Iterator[tuple[str, str, list[int]]]:
    """Lines as jobs: of one target and path each, and not too large."""
    parts: dict[tuple[str, str], list[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for target, path, place, size in lines:
        key = (target, path)
        full = len(parts.get(key, ())) == MAX_JOB_LINES or sizes.get(key, 0) + size > MAX_JOB_BYTES
        if key in parts and full:
            yield *key, parts.pop(key)
            sizes[key] = 0
        parts.setdefault(key, []).append(place)
        sizes[key] = sizes.get(key, 0) + size
    for key, places in parts.items():
        yield *key, places
