"""One running replica as the front sees it: a worker process, and a thread that reads its messages."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Literal, Protocol

from headrace.engine.client import EngineStatus
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import (
    BadFrame,
    FromWorker,
    Leaving,
    ModelReady,
    PageReport,
    StepEvents,
    SubmitResult,
    ToWorker,
)

LOG = logging.getLogger("headrace.cluster")

ReplicaRole = Literal["any", "prefill", "decode"]
"""Prompts and tokens, prompts alone for those that decode, or tokens."""


class ReplicaEvents(Protocol):
    """What a link tells, on its own thread."""

    def took(self, link: ReplicaLink, message: StepEvents) -> None:
        """Events of requests."""
        ...

    def moved(self, link: ReplicaLink, report: PageReport) -> None:
        """About pages that go to another replica or come from one."""
        ...

    def answered(self, link: ReplicaLink, answer: SubmitResult) -> None:
        """Whether a request was accepted."""
        ...

    def leaving(self, link: ReplicaLink) -> None:
        """It was asked to end, where it runs."""
        ...

    def lost(self, link: ReplicaLink, how: str) -> None:
        """The process has ended; nothing follows."""
        ...


class ReplicaLink:
    """`heard_s` is when its last message came, `computed_s` when one came that tells of a step.
    `closing`: its end is wanted. `role`: what it computes. `generation`: which weights it has."""

    def __init__(
        self,
        number: int,
        process: WorkerProcess,
        ready: ModelReady,
        told: ReplicaEvents,
        role: ReplicaRole = "any",
        generation: int = 0,
    ) -> None:
        self.number, self.ready, self.generation = number, ready, generation
        self.role: ReplicaRole = role
        self.status: EngineStatus = ready.status
        self.heard_s = self.computed_s = time.monotonic()
        self.longest_step_s = 0.0
        self.passing_on = False
        self.closing = False
        self.hung = False
        self._process, self._told = process, told
        self._thread = threading.Thread(target=self._read, name=f"headrace-replica-{number}", daemon=True)

    @property
    def node(self) -> str:
        """The address of its machine, "local" where that is this one."""
        return self._process.host

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def start(self) -> None:
        """Read its messages from now on."""
        self._thread.start()

    def put(self, message: ToWorker) -> None:
        """Send without waiting; without effect where the process is gone."""
        self._process.put(message)

    def kill(self) -> None:
        """End it at once; `lost` follows."""
        self._process.kill()

    def close(self) -> None:
        """End it; `lost` follows."""
        self.closing = True
        self._process.close()

    def join(self) -> None:
        """Wait until it has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _read(self) -> None:
        try:
            for message in self._process.messages():
                self.heard_s = time.monotonic()
                self._take(message)
        except BadFrame as error:
            LOG.error("replica %d: %s", self.number, error.message)
        except Exception:
            # What it sent makes no sense here. Without this thread nobody would hear of its end.
            LOG.exception("replica %d", self.number)
        how = self._process.close()
        self._told.lost(self, "made no step for too long" if self.hung else how)

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, SubmitResult):
            self._told.answered(self, message)
        elif isinstance(message, StepEvents):
            if message.status.steps != self.status.steps:
                self.computed_s = time.monotonic()
            self.status = message.status
            if math.isfinite(message.status.longest_step_s):
                self.longest_step_s = max(self.longest_step_s, message.status.longest_step_s)
            self.passing_on = True  # may take as long as readers take; the worker waits for it
            self._told.took(self, message)
            self.passing_on = False
            self.heard_s = time.monotonic()
        elif isinstance(message, PageReport):
            self._told.moved(self, message)
        elif isinstance(message, Leaving):
            self._told.leaving(self)
