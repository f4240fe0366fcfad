"""Computes fine-tuning jobs, one at a time, each in a process that goes on where an earlier one was ended."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.adapt.fine_tuning.order import METRICS_FILE, MODULE, AdapterNote, AdapterOrder, AdapterPlan
from headrace.errors import HeadraceError, InvalidRequest
from headrace.inference.store_threads import StoreThreads
from headrace.isolation.child import KEPT_VARIABLES
from headrace.storage.claim import StoreClaim
from headrace.storage.database import Database
from headrace.storage.files import Files
from headrace.storage.fine_tuning_jobs import OPEN, FineTuningJobs, StoredJob

LOG = logging.getLogger("headrace.fine_tuning")
WORK = ".fine-tuning"
"""Of the folder of adapters: what jobs keep while they run."""
RESULTS = "fine-tune-results"
LOOK_S = 5.0
METRICS = 200
"""Events with metrics that a job has at most, about."""
MAX_LINE = 1 << 16
T = TypeVar("T")

BaseOf = Callable[[str], Path]
"""The folder of a served model; raises for what cannot be trained."""
Load = Callable[[str, str, Path], Awaitable[str]]
"""Load the adapter at a path under a name for a model; gives the name that requests ask for."""

Unload = Callable[[str, str], Awaitable[None]]
"""Unload the adapter of a model."""


class FineTuningRunner:
    """Lives on the event loop. Of several servers with one store only one computes its jobs."""

    def __init__(
        self,
        database: Database,
        threads: StoreThreads,
        folder: Path,
        *,
        base_of: BaseOf,
        load: Load,
        unload: Unload,
        cores: int,
        hours: float,
    ) -> None:
        """`folder` is that of adapters."""
        self._database, self._threads, self._folder = database, threads, folder
        self._base_of, self._load, self._unload = base_of, load, unload
        self._cores, self._hours = cores, hours
        self._jobs = FineTuningJobs(database)
        self._news = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._current, self._is_stopped = "", False
        self._claim = StoreClaim(database.path, "fine-tuning")

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Compute jobs, also those that an earlier process has left, until the block ends."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            self._kill()
            await asyncio.gather(watching, return_exceptions=True)
            if self._process is not None:
                await self._process.wait()
            self._claim.close()

    def check_base(self, model: str) -> None:
        """Raises where that model cannot be trained."""
        self._base_of(model)

    def look(self) -> None:
        """A job is new, or goes on."""
        self._news.set()

    def stop(self, job_id: str) -> None:
        """A job was cancelled or paused: end its process, whose last checkpoint stays."""
        if job_id == self._current:
            self._is_stopped = True
            self._kill()
        self._news.set()

    async def _watch(self) -> None:
        await self._load_all()
        while True:
            self._news.clear()
            try:
                job = await self._next()
                if job is not None:
                    await self._run(job)
                    continue
            except HeadraceError as error:
                LOG.error("fine-tuning jobs wait: %s", error.message)
            except Exception:
                LOG.exception("fine-tuning jobs wait")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()

    async def _load_all(self) -> None:
        """Adapters that jobs of an earlier server have made."""
        try:
            jobs = await self._store(self._jobs.succeeded) if self._database.exists else []
        except HeadraceError as error:
            LOG.error("adapters of earlier fine-tuning jobs are not loaded: %s", error.message)
            return
        for job in jobs:
            path = self._folder / adapter_name(job)
            try:
                if path.is_dir():
                    await self._load(job.model, adapter_name(job), path)
            except Exception as error:  # such as a model that is not served any more
                LOG.error("the adapter of fine-tuning job %s is not loaded: %s", job.id, error)

    async def _next(self) -> StoredJob | None:
        if not self._database.exists or not self._claim.held():
            return None
        await self._sweep()
        found = await self._store(self._jobs.open_jobs)
        return found[0] if found else None

    async def _sweep(self) -> None:
        """Remove what jobs that have ended keep here: their work, and an adapter that was not loaded."""
        kept = await asyncio.to_thread(lambda: _names(self._folder / WORK))
        if not kept:
            return
        for job in await self._store(lambda: self._jobs.ended(kept)):
            if job.status != "succeeded":
                await asyncio.to_thread(_remove, self._folder / adapter_name(job))
            await asyncio.to_thread(_remove, self._folder / WORK / job.id)

    async def _run(self, job: StoredJob) -> None:
        work = self._folder / WORK / job.id
        self._current, self._is_stopped = job.id, False
        try:
            order = await self._order(job, work)
            last = await self._computed(job, order)
            if last is not None and last.kind == "made":
                await self._publish(job, order, last)
            elif last is not None:
                await self._fail(job, last.message, last.param)
            elif not self._is_stopped:
                await self._fail(job, "the process of the training was ended, such as for want of memory")
        except (HeadraceError, OSError) as error:
            message = error.message if isinstance(error, HeadraceError) else str(error)
            param = error.param if isinstance(error, InvalidRequest) else None
            await self._fail(job, message, param)
        except Exception as error:  # this job shall not keep others waiting
            LOG.exception("fine-tuning job %s fails", job.id)
            await self._fail(job, f"the training failed: {type(error).__name__}")
        finally:
            self._current = ""

    async def _order(self, job: StoredJob, work: Path) -> AdapterOrder:
        base = await asyncio.to_thread(self._base_of, job.model)
        training, validation = await self._store(lambda: self._jobs.data(job.id))

        def write() -> None:
            work.mkdir(parents=True, exist_ok=True, mode=0o700)
            (work / "training.jsonl").write_bytes(training)
            if validation is not None:
                (work / "validation.jsonl").write_bytes(validation)

        await asyncio.to_thread(write)
        return AdapterOrder(
            base=str(base),
            training=str(work / "training.jsonl"),
            validation=None if validation is None else str(work / "validation.jsonl"),
            out=str(work / "adapter"),
            work=str(work / "work"),
            plan=msgspec.json.decode(job.plan, type=AdapterPlan),
            threads=self._cores,
            hours=self._hours,
        )

    async def _computed(self, job: StoredJob, order: AdapterOrder) -> AdapterNote | None:
        """The last word of the process; None where it was ended without one."""
        variables = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", MODULE),  # -P: import nothing from the current directory
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=variables,
            limit=MAX_LINE,
        )
        assert process.stdin is not None and process.stdout is not None
        last: AdapterNote | None = None
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(msgspec.json.encode(order))
                process.stdin.close()
            while line := await process.stdout.readline():
                note = msgspec.json.decode(line, type=AdapterNote)
                if note.kind in ("made", "failed"):
                    last = note
                await self._noted(job, note)
            await process.wait()
        finally:
            self._kill()
        return last

    async def _noted(self, job: StoredJob, note: AdapterNote) -> None:
        if note.kind == "began":
            begun = await self._store(lambda: self._jobs.move(job.id, "running", of=OPEN))
            if not begun:  # it was cancelled or paused meanwhile
                self._kill()
        if note.kind == "step" and _is_told(note):
            data = {"step": note.step, "total_steps": note.steps, "train_loss": note.loss}
            text = f"Step {note.step}/{note.steps}: training loss={note.loss:.2f}"
            await self._store(lambda: self._jobs.note(job.id, text, kind="metrics", data=data))

    async def _publish(self, job: StoredJob, order: AdapterOrder, last: AdapterNote) -> None:
        name = adapter_name(job)
        place = self._folder / name

        def move() -> bytes:
            _remove(place)  # of a server that was killed just here
            Path(order.out).rename(place)
            return (Path(order.work) / METRICS_FILE).read_bytes()

        table = await asyncio.to_thread(move)
        model = await self._load(job.model, name, place)

        def keep() -> bool:
            file = Files(self._database).add(job.owner, METRICS_FILE, RESULTS, [table], expires_after_s=None)
            return self._jobs.succeed(job.id, model=model, result_file=file.id, trained_tokens=last.tokens)

        if not await self._store(keep):  # it was cancelled just now
            await self._unload(job.model, name)

    async def _fail(self, job: StoredJob, message: str, param: str | None = None) -> None:
        code = "invalid_training_file" if param in ("training_file", "validation_file") else "training_failed"
        await self._store(lambda: self._jobs.fail(job.id, code, message, param))

    async def _store(self, work: Callable[[], T]) -> T:
        return await self._threads.run(work)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()


def adapter_name(job: StoredJob) -> str:
    """Of the adapter that a job makes."""
    return f"ft-{job.suffix + '-' if job.suffix else ''}{job.id.removeprefix('ftjob-')[:8]}"


def _names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()] if folder.is_dir() else []


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _is_told(note: AdapterNote) -> bool:
    every = max(note.steps // METRICS, 1)
    return note.step % every == 0 or note.step == note.steps
