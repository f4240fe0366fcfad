"""Models whose steps cost nothing, to measure the overhead around them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from headrace.engine.engine import EngineLimits, EngineStatus
from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    EngineRequest,
    EventCallback,
    RequestFinished,
    RequestHandle,
    Timing,
    Usage,
)
from headrace.executors.executor import ExecutorLimits
from headrace.ops.value import Array
from headrace.program.step import Step

Round = Callable[[], None]
"""Called after each step; returns when the next one may begin."""


class NullExecutor:
    """Returns the same logits for every row."""

    def __init__(self, capacity: ExecutorLimits, vocabulary: int, token: int, after_step: Round) -> None:
        self.capacity = capacity
        self._logits = np.zeros((capacity.max_rows, vocabulary), np.float32)
        self._logits[:, token] = 1
        self._after_step = after_step
        self._began = False

    def run(self, step: Step) -> Array:
        if self._began:  # the previous step has been delivered
            self._after_step()
        self._began = True
        return self._logits[: len(step.rows)]


class _Stream(Struct):
    request: EngineRequest
    sink: EventCallback
    tokens: int = 0
    cancelled: bool = False


class StepEngine:
    """An engine without computation: each step gives every request one token of `text`.

    It starts when `width` requests have arrived, so that all of them run concurrently.
    """

    def __init__(self, text: str, width: int, after_step: Round) -> None:
        self.limits = EngineLimits(context_length=10**6, max_num_seqs=width)
        self._delta = Delta(0, text, (300,))
        self._width = width
        self._after_step = after_step
        self._streams: dict[str, _Stream] = {}
        self._wake = threading.Condition()
        self._stop = False
        self._steps = itertools.count()
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        with self._wake:
            self._streams[request.request_id] = _Stream(request, sink)
            self._wake.notify()
        return RequestHandle(request.request_id, self._cancel, lambda request_id, paused: None)

    def status(self) -> EngineStatus:
        return EngineStatus(len(self._streams), 0, 0, 0, 0, next(self._steps), 0.0, self._thread.is_alive())

    def close(self) -> None:
        with self._wake:
            self._stop = True
            self._wake.notify()
        self._thread.join()

    def _cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.cancelled = True

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stop or len(self._streams) >= self._width)
                if self._stop:
                    return
            while self._streams:
                for stream in list(self._streams.values()):
                    stream.sink(self._events(stream))
                next(self._steps)
                self._after_step()

    def _events(self, stream: _Stream) -> list[EngineEvent]:
        stream.tokens += 1
        if stream.tokens < (stream.request.params.max_tokens or 1) and not stream.cancelled:
            return [self._delta]
        del self._streams[stream.request.request_id]
        usage = Usage(len(stream.request.prompt), stream.tokens, 0)
        return [
            self._delta,
            ChoiceFinished(0, "length"),
            RequestFinished(usage, Timing(0.001, 0.002, 0.01), 0),
        ]
