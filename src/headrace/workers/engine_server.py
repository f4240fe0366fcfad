"""The worker process: runs one model's engine, driven through a socket; exits when the socket closes."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, cast

from msgspec.structs import replace

from headrace import _native
from headrace.config.garbage_collection import keep_present_objects
from headrace.config.stderr_log import log_to_stderr
from headrace.engine.client import EngineStatus
from headrace.engine.encoder import Encoder
from headrace.engine.engine import Engine
from headrace.engine.request import EngineEvent, RequestFailed, RequestHandle
from headrace.engine.turns import SharedTurns, Turns
from headrace.errors import HeadraceError
from headrace.loading.loader import start, usable_cores
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import PlannedModel, prepare
from headrace.workers.page_mover import PageMover, page_class
from headrace.workers.protocol import (
    AdapterResult,
    BadFrame,
    Cancel,
    EventsAck,
    FromWorker,
    Leaving,
    LoadAdapter,
    LoadModel,
    LoadProgress,
    ModelPlanned,
    ModelReady,
    ModelRejected,
    PageOrder,
    Pause,
    PlanModel,
    Submit,
    SubmitResult,
    UnloadAdapter,
    frame,
    read_to_worker,
    step_frame,
)
from headrace.workers.transport import Pipe

LOG = logging.getLogger("headrace.workers")

BEAT_S = 0.25
PROGRESS_S = 0.05
GRACE_S = 5.0  # time for a load to clean up
BATCHES_PER_FRAME = 4096
STEPS_AHEAD = 4
"""Maximum number of steps whose events the server has not acknowledged. It is large enough to compute the
next step while the last is in transit. Beyond it the engine waits, so that running requests do not get
ahead of requests still in transit.
"""
OOM_SCORE = "500"

Batch = tuple[int, Sequence[EngineEvent]]
Outgoing = Batch | FromWorker | None
"""None: send the engine's status."""


class EngineServer:
    """One per process; `run` does not return. With `leaves`, SIGTERM asks the server to drain this worker."""

    def __init__(self, end: socket.socket, turns: int | None = None, *, leaves: bool = False) -> None:
        self._turns, self._leaves = turns, leaves
        self._engine: Engine | Encoder | None = None
        self._pages: PageMover | None = None
        self._weight_format = ""
        self._orders: queue.SimpleQueue[PlanModel | LoadModel] = queue.SimpleQueue()
        # Submissions that take a while, by number, and whether the server waits to hear of each.
        self._compiling: dict[int, tuple[Future[RequestHandle], bool]] = {}
        self._stopping = False
        self._unacknowledged: deque[int] = deque()  # steps not yet acknowledged; guarded by _acknowledged
        self._acknowledged = threading.Condition()
        self._last_sent = -1
        self._pipe: Pipe[Outgoing] = Pipe(end, self._encode, "headrace-events")

    def run(self) -> NoReturn:
        """Load the requested model, then run until the server is gone or the engine has failed."""
        log_to_stderr()
        # The server decides when to stop, even if a signal goes to the whole process group. SIGINT has been
        # blocked since the process began.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._interrupted)
        with suppress(OSError):  # if memory runs out, the kernel should kill the worker, not the server
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
        code = 1
        try:
            threading.Thread(target=self._read, name="headrace-orders", daemon=True).start()
            options, prepared = self._prepare()
            self._load(prepared, options)
            self._beat()
        except SystemExit:
            code = 0
        except Exception:
            LOG.exception("the worker failed")
        self._pipe.close()
        os._exit(code)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            raise SystemExit
        if self._leaves and self._engine is not None:  # a thread: this one may hold the pipe's lock
            self._leaves = False
            threading.Thread(target=self._pipe.put, args=(Leaving(),), daemon=True).start()

    # -- main thread: loading
    # ----------------------------------------------------------------------------

    def _prepare(self) -> tuple[EngineOptions, PlannedModel]:
        """Plan with the options that the server sends, repeatedly, until it sends LoadModel."""
        prepared: tuple[EngineOptions, PlannedModel] | None = None
        while True:
            order = self._orders.get()
            if isinstance(order, LoadModel) and prepared is not None:
                return prepared
            if prepared is not None:
                prepared[1].checkpoint.close()
                prepared = None
            if not isinstance(order, PlanModel):
                raise BadFrame("LoadModel came before a plan")
            try:
                prepared = order.options, prepare(order.model, order.options)
                self._pipe.put(ModelPlanned(prepared[1].plan))
            except Exception as error:
                self._pipe.put(ModelRejected(_typed(error)))

    def _load(self, prepared: PlannedModel, options: EngineOptions) -> None:
        said_s = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal said_s
            if done == total or time.monotonic() - said_s > PROGRESS_S:
                said_s = time.monotonic()
                self._pipe.put(LoadProgress(done, total))

        plan = prepared.plan
        try:
            model = start(prepared, options, progress=progress, turns=self._join(options))
        except Exception as error:
            self._pipe.put(ModelRejected(_typed(error)))
            raise SystemExit from None
        assert isinstance(model.engine, Engine | Encoder)
        self._engine, self._weight_format = model.engine, plan.weight_format
        keep_present_objects()
        self._pipe.put(
            ModelReady(
                model.engine.limits,
                model.defaults,
                prepared.model.config.vocabulary,
                min(plan.context, plan.page_count * plan.page_tokens),
                model.cache_failures,
                model.cache_damages,
                model.engine.status(),
                page_class(model.engine, plan.weight_format) if isinstance(model.engine, Engine) else "",
            )
        )

    def _join(self, options: EngineOptions) -> Turns | None:
        """Turns with the server's other workers."""
        if self._turns is None:
            return None
        return SharedTurns(_native.Turns(self._turns, usable_cores()), share=options.share)

    def _beat(self) -> None:
        """Send the engine's status periodically while there are no events, until the engine has stopped: if
        it has changed, or if no step shows that this process is well."""
        assert self._engine is not None
        told: EngineStatus | None = None
        while self._engine.status().alive:
            status = self._engine.status()
            if status != told or self._compiling or status.waits_for_turn:
                self._pipe.put(None)
            told = status
            time.sleep(BEAT_S)

    # -- reader thread
    # -----------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while (body := self._pipe.read()) is not None:
                self._take(body)
        except BadFrame as error:
            LOG.error("%s", error.message)
        except Exception:
            LOG.exception("the worker failed")
        if self._engine is None:  # an unfinished load may have files to clean up
            self._stopping = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            time.sleep(GRACE_S)
        os._exit(0)

    def _take(self, body: bytes) -> None:
        match read_to_worker(body):
            case PlanModel() | LoadModel() as order:
                self._orders.put(order)
            case Submit() as order:
                self._submit(order)
            case Cancel(number):
                self._cancel(number)
            case Pause(number, paused):
                if self._engine is not None:
                    self._engine.pause(str(number), paused)
            case LoadAdapter() as order:
                if order.expected is None:
                    threading.Thread(target=self._load_adapter, args=(order,), daemon=True).start()
                else:
                    self._load_adapter(order)
            case UnloadAdapter(digest):
                if self._engine is not None:
                    self._engine.unload_adapter(digest)
            case EventsAck(steps):
                with self._acknowledged:
                    while self._unacknowledged and self._unacknowledged[0] <= steps:
                        self._unacknowledged.popleft()
                    self._acknowledged.notify()
            case order:
                self._move_pages(order)

    def _move_pages(self, order: PageOrder) -> None:
        if not isinstance(self._engine, Engine):
            raise BadFrame("pages are moved before a model that generates was loaded")
        if self._pages is None:
            self._pages = PageMover(self._engine, self._weight_format, self._pipe.put)
        self._pages.take(order)

    def _submit(self, order: Submit) -> None:
        number = order.number
        try:
            if self._engine is None:
                raise BadFrame("a request came before the model was loaded")
            request = replace(order.request, request_id=str(number))
            if request.constraint is None:
                self._engine.submit(request, lambda events: self._tell(number, events))
            else:  # compiling a grammar takes a while
                submitting = self._engine.submit_later(request, lambda events: self._tell(number, events))
                self._compiling[number] = submitting, order.acknowledge
                submitting.add_done_callback(lambda done: self._compiled(order, done))
                return
        except Exception as error:
            self._refuse(order, error)
            return
        if order.acknowledge:
            self._pipe.put(SubmitResult(number, None))

    def _load_adapter(self, order: LoadAdapter) -> None:
        try:
            if self._engine is None:
                raise BadFrame("an adapter came before the model was loaded")
            info = self._engine.load_adapter(order.path, order.expected)
            self._pipe.put(AdapterResult(order.number, info, None))
        except Exception as error:
            self._pipe.put(AdapterResult(order.number, None, _typed(error)))

    def _compiled(self, order: Submit, submitted: Future[RequestHandle]) -> None:
        """A submission that took a while has ended, or was cancelled before it began."""
        del self._compiling[order.number]
        if submitted.cancelled():
            return
        error = submitted.exception()
        if error is not None:
            self._refuse(order, error)
        elif order.acknowledge:
            self._pipe.put(SubmitResult(order.number, None))

    def _refuse(self, order: Submit, error: BaseException) -> None:
        refusal = _typed(error)
        self._pipe.put(
            SubmitResult(order.number, refusal)
            if order.acknowledge
            else (order.number, [RequestFailed(refusal)])
        )

    def _cancel(self, number: int) -> None:
        if number in self._compiling:
            submitting, is_awaited = self._compiling[number]
            # Who waits has forgotten it. What an earlier worker has accepted must have a terminal event.
            if not (is_awaited and submitting.cancel()):
                submitting.add_done_callback(lambda done: done.exception() or done.result().cancel())
        elif self._engine is not None:
            self._engine.cancel(str(number))

    def _tell(self, number: int, events: Sequence[EngineEvent]) -> None:
        """On the engine's thread: send events, after those of earlier steps were acknowledged."""
        assert self._engine is not None
        if self._engine.steps != self._last_sent:
            self._last_sent = self._engine.steps
            with self._acknowledged:
                while len(self._unacknowledged) >= STEPS_AHEAD:
                    self._acknowledged.wait()
                self._unacknowledged.append(self._last_sent)
        self._pipe.put((number, events))

    # -- writer thread
    # -----------------------------------------------------------------------------------

    def _encode(self, items: Sequence[Outgoing]) -> bytes:
        """One StepEvents for all events in a row; several only if there are very many events."""
        written = bytearray()
        for events, group in itertools.groupby(items, lambda item: item is None or isinstance(item, tuple)):
            if not events:
                written += b"".join(map(frame, cast("Iterable[FromWorker]", group)))
                continue
            assert self._engine is not None  # only an engine produces events
            status = self._engine.status()
            batches = [item for item in cast("Iterable[Batch | None]", group) if item is not None]
            for first in range(0, max(len(batches), 1), BATCHES_PER_FRAME):
                written += step_frame(status, batches[first : first + BATCHES_PER_FRAME])
        return bytes(written)


def _typed(error: BaseException) -> HeadraceError:
    """The error itself if it is typed; otherwise one with only the exception's class, because the text
    may contain a path or a prompt.
    """
    if isinstance(error, HeadraceError):
        return error
    LOG.error("unexpected", exc_info=error)
    return HeadraceError(f"the model's worker failed: {type(error).__name__}; see the log")
