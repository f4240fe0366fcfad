"""Engine client for a worker process: keeps requests until they end, replays them if the worker dies."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from msgspec.structs import replace

from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import EngineLimits, EngineState, EngineStatus
from headrace.engine.fair_queue import FairQueue
from headrace.engine.request import (
    EngineEvent,
    EngineRequest,
    EventCallback,
    RequestFailed,
    RequestFinished,
    RequestHandle,
)
from headrace.engine.validation import validate_request
from headrace.errors import DeadlineExceeded, EngineStopped, HeadraceError, InvalidRequest
from headrace.workers import step_watch
from headrace.workers.delivered import Diverged
from headrace.workers.in_flight import InFlightRequest, cancelled, compiling, computing, repeatable, send
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import (
    AdapterResult,
    BadFrame,
    Cancel,
    EventsAck,
    ModelReady,
    Pause,
    StepEvents,
    Submit,
    SubmitResult,
    read_events,
)
from headrace.workers.remote_adapters import RemoteAdapters
from headrace.workers.step_watch import StepWatch

LOG = logging.getLogger("headrace.workers")

MAX_REPLAYS = 4
"""Maximum number of runs in a row in which a request was among the first to run and its worker died before it
gave anything new of it. Such a request may be the cause of the crash: beyond this it fails.
"""
MAX_CRASHES = 10
CRASH_WINDOW_S = 60.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0

Start = Callable[[Callable[[WorkerProcess], None]], tuple[WorkerProcess, ModelReady]]
"""Starts a worker and loads its model. The callback gets the process as soon as it exists, so that it can
be terminated while it loads.
"""


class RemoteEngineClient:
    """Runs requests in a worker process, and restarts the worker when it dies.

    Requests then run again with the same seed, so their output is byte-identical: what their readers have is
    left out, and readers see a pause. Grammars that were being compiled are compiled again. If workers die
    repeatedly without anything new in between, the engine has failed and every request fails with the cause.
    """

    def __init__(self, worker: WorkerProcess, ready: ModelReady, start: Start) -> None:
        self.limits: EngineLimits = ready.limits
        self._ready, self._start = ready, start
        self._lock = threading.Lock()  # guards the fields below
        self._adapters = RemoteAdapters()
        self._adapters.begin(worker.put)
        self._process: WorkerProcess = worker  # running or starting
        self._worker: WorkerProcess | None = worker  # accepts requests
        self._open: dict[int, InFlightRequest] = {}
        self._numbers: dict[str, int] = {}  # request id -> number, for requests in flight
        self._pending_choices = 0
        self._failure: HeadraceError | None = None
        self._status = ready.status
        self._restarts = 0
        self._next_number, self._next_id = itertools.count(), itertools.count()
        self._crashes: deque[float] = deque()  # since the last new event; used only by the supervisor thread
        self._closing = threading.Event()
        self._longest_step_s = 0.0  # of all workers
        self._beats = 0  # frames with a status, of all workers
        self._watch = StepWatch()
        self._passing_on = False
        self._stalled_s = 0.0  # without a step, of the current worker if it is being killed for that
        self._supervisor = threading.Thread(target=self._supervise, name="headrace-worker", daemon=True)
        self._supervisor.start()
        self._watcher = threading.Thread(target=self._watch_steps, name="headrace-watch", daemon=True)
        self._watcher.start()

    # -- any thread
    # --------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """Queue a request; `sink` gets its events. Raises a typed error before anything is computed.

        Waits for the worker only if the request has a grammar, which is compiled there.
        """
        return self.submit_later(request, sink).result()

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """As `submit`, without waiting for the worker. Raises what is refused here."""
        validate_request(
            request,
            vocabulary=self._ready.vocabulary,
            longest=self._ready.longest,
            model_longest=self.limits.model_context_length,
            embedding_size=self.limits.embedding_size,
        )
        self._adapters.check(request.adapter)
        request = repeatable(request, self._next_id)
        request_id = request.request_id
        accepted, handle = Future[RequestHandle](), RequestHandle(request_id, self.cancel, self.pause)
        waits = request.constraint is not None
        now_s = time.monotonic()
        item = InFlightRequest(request, sink, now_s, now_s, handle, accepted if waits else None)
        self._add(request_id, item)
        if waits:
            accepted.add_done_callback(lambda done: done.cancelled() and self.cancel(request_id))
        else:
            accepted.set_result(handle)
        return accepted

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """See EngineClient."""
        return self._adapters.load(path, expected)

    def unload_adapter(self, digest: str) -> None:
        """See EngineClient."""
        self._adapters.unload(digest)

    def status(self) -> EngineStatus:
        """The engine's last known status, and the state of its worker."""
        with self._lock:
            state: EngineState = "running" if self._worker is not None else "restarting"
            if self._failure is not None:
                state = "failed"
            running = self._status.running if state == "running" else 0
            items = self._open.values()
            waiting = max(
                self._status.waiting if running else 0, computing(items) + compiling(items) - running
            )
            return replace(
                self._status,
                running=running,
                waiting=waiting,
                alive=self._failure is None and not self._closing.is_set(),
                state=state,
                restarts=self._restarts,
                stalled_s=self._watch.stalled_s,
                longest_step_s=self._longest_step_s,
                failure=None if self._failure is None else self._failure.message,
            )

    def cancel(self, request_id: str) -> None:
        """Cancel a request; no effect if it has ended."""
        with self._lock:
            number = self._numbers.get(request_id)
            if number is None:
                return
            item = self._open[number]
            item.cancelled = True
            if self._worker is not None:
                self._worker.put(Cancel(number))
                if item.accepted is None:
                    return
            self._forget(number)  # no worker computes it, or it has not begun and is dropped
        send(item, cancelled(item))

    def pause(self, request_id: str, paused: bool) -> None:
        """Pause or resume a request; no effect if it has ended. While no worker runs the next one is told."""
        with self._lock:
            number = self._numbers.get(request_id)
            if number is None:
                return
            self._open[number].paused = paused
            if self._worker is not None:
                self._worker.put(Pause(number, paused))

    def close(self) -> None:
        """Stop the worker; requests in flight fail with EngineStopped."""
        with self._lock:
            self._closing.set()
            process = self._process
        process.close()
        self._supervisor.join()
        self._watcher.join()

    @property
    def worker_pid(self) -> int:
        """The process id of the worker that is running or starting."""
        return self._process.pid

    def _add(self, request_id: str, item: InFlightRequest) -> None:
        choices = item.request.params.n
        with self._lock:
            if self._failure is not None or self._closing.is_set():
                raise self._failure or EngineStopped("the engine is shutting down: start it again")
            if request_id in self._numbers:
                raise InvalidRequest(f"request_id '{request_id}' is in use", param="request_id")
            self.limits.check_room(self._pending_choices, choices)
            self._register(item, item.request)

    def _register(self, item: InFlightRequest, run: EngineRequest) -> None:
        """With the lock held: record the request as in flight, and send its run if a worker is ready."""
        number = next(self._next_number)
        item.rank = time.monotonic() + item.request.priority * self.limits.ageing_s, number
        self._open[number] = item  # before it is sent: its first events may come at once
        self._numbers[item.request.request_id] = number
        self._pending_choices += item.request.params.n
        if self._worker is not None:
            self._worker.put(Submit(number, run, item.accepted is not None))
            if item.paused:
                self._worker.put(Pause(number, True))

    def _forget(self, number: int) -> InFlightRequest:
        """With the lock held: the request has ended; remove it."""
        item = self._open.pop(number)
        del self._numbers[item.request.request_id]
        self._pending_choices -= item.request.params.n
        return item

    # -- supervisor thread
    # -------------------------------------------------------------------------------

    def _supervise(self) -> None:
        worker: WorkerProcess | None = self._process
        while worker is not None:
            cause = self._listen(worker)
            self._lose(f"the model's worker process {cause}")
            worker = self._revive(cause)
        self._fail_all(self._failure or EngineStopped("the engine was shut down"))

    def _listen(self, worker: WorkerProcess) -> str:
        """Forward the worker's messages until it ends; returns how it ended."""
        try:
            for message in worker.messages():
                if isinstance(message, SubmitResult):
                    self._answer(message)
                elif isinstance(message, AdapterResult):
                    self._adapters.answer(message)
                elif isinstance(message, StepEvents):
                    self._take(worker, message)
        except BadFrame as error:
            LOG.error("%s", error.message)
        how = worker.close()
        return f"made no step for {self._stalled_s:g} s" if self._stalled_s else how

    def _take(self, worker: WorkerProcess, message: StepEvents) -> None:
        self._status = message.status
        self._beats += 1
        self._longest_step_s = max(self._longest_step_s, message.status.longest_step_s)
        self._passing_on = True  # may take as long as readers take; the worker waits for it
        for number, batch in message.batches:
            events = read_events(batch)
            item = self._open.get(number)
            if item is None or not events:
                continue
            last = events[-1]
            if isinstance(last, RequestFailed) and isinstance(last.error, EngineStopped):
                continue  # the engine has failed and its process is about to end, which is handled there
            events = self._new_events(worker, number, item, events)
            if not events:
                continue
            item.advanced = True
            self._crashes.clear()
            if isinstance(events[-1], RequestFinished | RequestFailed):
                with self._lock:
                    self._forget(number)
            send(item, events)
        self._passing_on = False
        if message.batches:
            worker.put(EventsAck(message.status.steps))

    @staticmethod
    def _new_events(
        worker: WorkerProcess, number: int, item: InFlightRequest, events: list[EngineEvent]
    ) -> list[EngineEvent]:
        try:
            return item.take(events)
        except Diverged:
            worker.put(Cancel(number))
            message = (
                "the model's worker process ended before this reply did, and the next one gave another text: "
                "has the model changed? Send it again"
            )
            LOG.error("request %s: %s", item.request.request_id, message)
            return [RequestFailed(EngineStopped(message))]

    def _answer(self, answer: SubmitResult) -> None:
        item = self._open.get(answer.number)
        if item is None or item.accepted is None:
            return  # it has ended already
        if answer.error is None:
            item.accept()
            return
        with self._lock:
            self._forget(answer.number)
        item.refuse(answer.error)

    def _lose(self, what: str) -> None:
        """The worker has died: fail requests that cannot be replayed, keep the others."""
        error = EngineStopped(f"{what} before this reply ended: send it again")
        ended: list[tuple[InFlightRequest, list[EngineEvent]]] = []
        self._adapters.lose()
        with self._lock:
            self._worker = None
            if self._closing.is_set():
                return
            for item in self._open.values():
                item.deaths = 0 if item.advanced else item.deaths
            for item in self._suspects():
                item.deaths += 1
                if item.deaths > MAX_REPLAYS:
                    self._crashes.clear()  # the request that caused the crashes is found
            for number, item in list(self._open.items()):
                if item.cancelled:
                    ended.append((self._forget(number), cancelled(item)))
                elif item.deaths > MAX_REPLAYS:
                    ended.append((self._forget(number), [RequestFailed(error)]))
            kept = len(self._open)
        LOG.error("%s: %d requests failed, %d are restarted in the next worker", what, len(ended), kept)
        for item, events in ended:
            send(item, events)

    def _suspects(self) -> list[InFlightRequest]:
        """The requests that the worker must have run, or whose grammar it has compiled, although it gave
        nothing new of them."""
        waiting: FairQueue[InFlightRequest] = FairQueue()
        slots = self.limits.max_num_seqs
        for item in self._open.values():
            if item.advanced:
                slots -= item.request.params.n
            elif item.accepted is None:
                waiting.add(item)
        suspects: list[InFlightRequest] = []
        at_least_one = slots == self.limits.max_num_seqs
        while (item := waiting.next()) is not None:
            slots -= item.request.params.n
            if slots < 0 and (suspects or not at_least_one):
                break
            waiting.take(item)
            suspects.append(item)
        return suspects + [item for item in self._open.values() if item.accepted is not None]

    def _revive(self, cause: str) -> WorkerProcess | None:
        """Start the next worker and resend the kept requests; None if the engine is closing or has failed."""
        while not self._closing.is_set():
            now_s = time.monotonic()
            self._crashes.append(now_s)
            while now_s - self._crashes[0] > CRASH_WINDOW_S:
                self._crashes.popleft()
            crashes = len(self._crashes)
            if crashes >= MAX_CRASHES:
                self._failure = EngineStopped(
                    f"the model failed: its worker died {crashes} times in a row and at last {cause}: "
                    "see the server's log, then load the model again or restart the server"
                )
                LOG.error("%s", self._failure.message)
                return None
            if crashes > 1:
                self._closing.wait(min(FIRST_PAUSE_S * 2 ** (crashes - 2), LONGEST_PAUSE_S))
            try:
                worker, ready = self._start(self._adopt)
            except Exception as error:
                cause = f"did not start: {error}"
                LOG.error("the model's worker process %s", cause)
                continue
            if self._resume(worker, ready):
                return worker
        return None

    def _adopt(self, process: WorkerProcess) -> None:
        """Register a starting process, so that `close` terminates it."""
        with self._lock:
            self._process = process
            closing = self._closing.is_set()
        if closing:
            process.close()

    def _resume(self, worker: WorkerProcess, ready: ModelReady) -> bool:
        """Send the kept requests to a new worker."""
        self._end_late()
        with self._lock:
            if self._closing.is_set():
                return False
            self._ready, self._status = ready, ready.status
            self._restarts += 1
            self._worker, self._stalled_s = worker, 0.0
            self._adapters.begin(worker.put, {item.request.adapter for item in self._open.values()})
            for number, item in list(self._open.items()):
                self._forget(number)
                self._register(item, item.next_run())
            self._adapters.after_replay()
        return True

    def _end_late(self) -> None:
        """While no worker runs: fail the requests whose deadline has passed, which else the worker does."""
        with self._lock:
            if self._worker is not None:
                return
            now_s = time.monotonic()
            late = [self._forget(number) for number, item in list(self._open.items()) if item.is_late(now_s)]
        for item in late:
            error = DeadlineExceeded("the request's deadline has passed: allow more time")
            send(item, [RequestFailed(error)])

    # -- watchdog thread
    # ---------------------------------------------------------------------------------

    def _watch_steps(self) -> None:
        """Kill a worker that has work but makes no step, or is silent while it compiles or awaits a turn; and
        keep deadlines while there is none."""
        watch = self._watch
        while not self._closing.wait(step_watch.LOOK_S):
            self._end_late()
            with self._lock:
                worker = self._worker
                items = self._open.values()
                steps = computing(items) > 0
                works = worker is not None and (steps or compiling(items) > 0) and not self._passing_on
                beats = 0 if steps and not self._status.waits_for_turn else self._beats
                watch.look((self._restarts, self._status.steps, beats), works=works)
                if worker is None or not watch.overdue(self._longest_step_s):
                    continue
                self._stalled_s = watch.stalled_s
                watch.gave_up()
            LOG.error("the model's worker process makes no step: killing it")
            worker.kill()

    def _fail_all(self, error: HeadraceError) -> None:
        with self._lock:
            self._worker = None
            items = [self._forget(number) for number in list(self._open)]
        for item in items:
            send(item, [RequestFailed(error)])
