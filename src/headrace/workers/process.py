"""The server's handle on one worker process: started, told to load, listened to, ended."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator

from headrace.engine.client import MemoryPlan
from headrace.errors import EngineStopped
from headrace.workers.protocol import (
    BadFrame,
    FromWorker,
    LoadProgress,
    ModelPlanned,
    ModelReady,
    ModelRejected,
    ToWorker,
    frame,
    read_from_worker,
)
from headrace.workers.spawn import Spawned, spawn
from headrace.workers.transport import Pipe

GRACE_S = 5.0  # beyond this a worker that was told to end is killed


class WorkerProcess:
    """It ends when this closes it or the server is gone, whatever way it went.

    First `Prepare` is put and `planned` awaited, perhaps several times; then `Proceed` and `ready`; then
    requests are put and `messages` read.
    """

    def __init__(self, spawned: Spawned | None = None) -> None:
        spawned = spawned or spawn()
        self._process = spawned.process
        self._pipe: Pipe[bytes] = Pipe(spawned.end, b"".join, "headrace-orders")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def put(self, message: ToWorker) -> None:
        """Send without waiting. Where the process is gone nothing happens; `messages` ends then."""
        self._pipe.put(frame(message))

    def planned(self) -> MemoryPlan:
        """The memory plan of a model; raises what is wrong with it, EngineStopped where the process died."""
        message = self._next(lambda done, total: None)
        if not isinstance(message, ModelPlanned):
            raise BadFrame(f"a worker that was to plan sent {type(message).__name__}")
        return message.plan

    def ready(self, progress: Callable[[int, int], None]) -> ModelReady:
        """What was planned is loaded; raises as `planned`."""
        message = self._next(progress)
        if not isinstance(message, ModelReady):
            raise BadFrame(f"a worker that was to load sent {type(message).__name__}")
        return message

    def messages(self) -> Iterator[FromWorker]:
        """What the worker says, until it has ended. Raises BadFrame."""
        while (body := self._pipe.read()) is not None:
            yield read_from_worker(body)

    def close(self) -> str:
        """End the process if it has not ended, and say how it did."""
        self._pipe.close()
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """End the process as it is; `messages` ends then."""
        self._process.kill()

    def _next(self, progress: Callable[[int, int], None]) -> FromWorker:
        """The next message that is not about progress."""
        for message in self.messages():
            if isinstance(message, LoadProgress):
                progress(message.done_bytes, message.total_bytes)
            elif isinstance(message, ModelRejected):
                raise message.error
            else:
                return message
        raise EngineStopped(f"the model's worker process {self.close()} while the model loaded: see the log")
