"""Runs the lines of batches: through the app's own endpoints, where there is room, until all are done."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import IO

import msgspec
from msgspec import Struct, field
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Scope

from headrace.api.http.call_context import CallContext
from headrace.api.http.middleware import new_request_id
from headrace.api.http.rate_limits import ApiKeyUsage, RateLimited
from headrace.api.openai.batch_files import publish
from headrace.api.openai.batch_lines import LineResponse, reply_line
from headrace.api.service import Service
from headrace.storage.batches import Batches, Line, LineState, StoredBatch

LOG = logging.getLogger("headrace.api")

LOOK_IDLE_S, LOOK_BUSY_S = 5.0, 0.25  # how often the store is looked at for what other programs wrote
RETRIED = (429, 503, 529)
LONGEST_PAUSE_S = 5.0
PAUSE_AFTER_FAILURE_S = 10.0
LINES_AT_A_TIME = 64


class _Answer(Struct):
    """What an endpoint sent back."""

    status: int = 0
    pause_s: float = 1.0
    body: bytearray = field(default_factory=bytearray)


class BatchRunner:
    """Lives on the event loop. Of several servers with one store only one runs its batches.

    A line is a call of the app itself, with the lowest priority. Lines run while fewer than half of the
    sequences that the engine computes at a time are taken, by requests and lines together.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._batches = Batches(service.database)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()  # by their owners
        self._closing: set[str] = set()  # what is left to do is not interrupted
        self._most = max(1, service.settings.max_num_seqs // 2)
        self._running = 0
        self._news = asyncio.Event()
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()
        self._claim: IO[str] | None = None

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
            if self._claim is not None:
                self._claim.close()

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
        if self._service.draining:
            self._interrupt()
        if self._service.draining or not self._service.database.exists or not self._claimed():
            return
        for batch in await self._service.run_in_thread(self._batches.open):
            task, account = self._tasks.get(batch.id), self._service.keys.account_of(batch.owner)
            if task is None and account is not None:
                self._tasks[batch.id] = asyncio.create_task(self._run(batch, account.for_idle_work()))
            elif task is not None and batch.status == "cancelling" and batch.id not in self._cancelled:
                self._cancelled.add(batch.id)
                if batch.id not in self._closing:
                    task.cancel()

    def _claimed(self) -> bool:
        """Whether the batches of this store are this server's to run."""
        path = self._service.database.path
        if self._claim is not None or path is None:
            return True
        try:
            file = path.with_name(path.name + ".batches").open("w")
        except OSError as error:
            LOG.error("batches wait: their lock cannot be made: %s", error.strerror)
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._claim = file
        return True

    def _interrupt(self) -> None:
        """Stop the lines; they run again when the server does."""
        for batch_id, task in self._tasks.items():
            if batch_id not in self._closing:
                task.cancel()

    async def _run(self, batch: StoredBatch, account: ApiKeyUsage) -> None:
        """One batch from where it stands to its end."""
        try:
            outcome = batch.outcome or await self._outcome(batch, account)
            self._closing.add(batch.id)
            if batch.outcome is None:
                await self._service.run_in_thread(lambda: self._batches.close(batch.id, outcome))
            await asyncio.to_thread(publish, self._service.database, batch, outcome)
        except Exception:
            LOG.exception("the batch %s stands still; it goes on in a while", batch.id)
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        finally:
            self._closing.discard(batch.id)
            self._cancelled.discard(batch.id)
            del self._tasks[batch.id]

    async def _outcome(self, batch: StoredBatch, account: ApiKeyUsage) -> str:
        """Run what is pending; how the batch ended."""
        if batch.status == "cancelling":
            return "cancelled"
        try:
            async with asyncio.timeout(max(0.0, batch.expires_s - time.time())):
                await self._run_lines(batch, account)
        except TimeoutError:
            return "expired"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if batch.id not in self._cancelled or task is None:
                raise
            task.uncancel()
            return "cancelled"
        return "completed"

    async def _run_lines(self, batch: StoredBatch, account: ApiKeyUsage) -> None:
        places, after = asyncio.Semaphore(self._most), 0
        async with asyncio.TaskGroup() as group:
            while lines := await self._service.run_in_thread(
                partial(self._batches.pending, batch.id, after=after, limit=LINES_AT_A_TIME)
            ):
                for line in lines:
                    await places.acquire()
                    task = group.create_task(self._run_line(batch, account, line))
                    task.add_done_callback(lambda _: places.release())
                    after = line.place

    async def _run_line(self, batch: StoredBatch, account: ApiKeyUsage, line: Line) -> None:
        """Run a line until it has an answer that is one, and keep that."""
        while True:
            request_id = new_request_id()
            async with self._room():
                answer = await self._ask(request_id, batch.endpoint, account, line.body or b"")
            if answer.status not in RETRIED:
                break
            await asyncio.sleep(min(answer.pause_s, LONGEST_PAUSE_S))
        state = LineState.COMPLETED if answer.status == 200 else LineState.FAILED
        response = LineResponse(answer.status, request_id, msgspec.Raw(bytes(answer.body)))
        reply = reply_line(line.custom_id, response)
        await self._service.run_in_thread(lambda: self._batches.record(batch.id, line.place, state, reply))

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
        service = self._service
        return 0 if service.starting or service.draining else self._most - service.open_calls

    async def _ask(self, request_id: str, path: str, account: ApiKeyUsage, body: bytes) -> _Answer:
        """Call the endpoint as if the body had come from outside; whose call it is has been settled."""
        service, answer = self._service, _Answer()
        call = CallContext(request_id, "POST", path, account, idle=True)
        try:
            account.enter()
        except RateLimited as error:
            return _Answer(error.status, error.retry_after_s)
        arriving: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return arriving.pop() if arriving else await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = answer.status = message["status"]
                answer.pause_s = float(Headers(raw=message["headers"]).get("retry-after", 1))
                service.release_body(call)
            else:
                answer.body += message.get("body", b"")

        try:
            await self._app(_scope(path, len(body), call), receive, send)
        except Exception:  # the reply says that there was one, and this what it was
            LOG.exception("a line of a batch failed")
        finally:
            account.leave()
            service.release_body(call)
            service.ended(call)
        return answer


def runner_of(http: HttpRequest) -> BatchRunner:
    """The runner of the app that `http` came to."""
    runner = http.app.state.batches
    assert isinstance(runner, BatchRunner)
    return runner


def _scope(path: str, size: int, call: CallContext) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(size).encode())],
        "client": None,
        "server": None,
        "headrace.call": call,
    }
