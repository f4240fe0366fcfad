"""The server's handle of one worker process: start, load, receive messages, stop."""

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
from headrace.workers.spawn import Spawned, Spawner
from headrace.workers.transport import Pipe

GRACE_S = 5.0  # after this a worker that was asked to exit is killed


class WorkerProcess:
    """The process ends when this is closed or when the server process is gone, for whatever reason.

    Protocol: put `PlanModel` and wait for `planned`, possibly several times; then `LoadModel` and `ready`;
    then put requests and read `messages`.
    """

    def __init__(self, spawned: Spawned | None = None, *, spawner: Spawner | None = None) -> None:
        """A process that was started, or a new one of `spawner`."""
        spawned = spawned or (spawner or Spawner(forks=False)).spawn()
        self._process, self.spawner = spawned.process, spawned.spawner
        self.host = "local"  # or the address of another machine
        self._pipe: Pipe[bytes] = Pipe(spawned.end, b"".join, "headrace-orders", eager=True)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def put(self, message: ToWorker) -> None:
        """Send without waiting. No effect if the process is gone; `messages` then ends."""
        self._pipe.put(frame(message))

    def planned(self) -> MemoryPlan:
        """The memory plan; raises the error of planning, or EngineStopped if the process died."""
        message = self._next(lambda done, total: None)
        if not isinstance(message, ModelPlanned):
            raise BadFrame(f"a worker that was asked to plan sent {type(message).__name__}")
        return message.plan

    def ready(self, progress: Callable[[int, int], None]) -> ModelReady:
        """Wait until the planned model is loaded; raises as `planned` does."""
        message = self._next(progress)
        if not isinstance(message, ModelReady):
            raise BadFrame(f"a worker that was asked to load sent {type(message).__name__}")
        return message

    def messages(self) -> Iterator[FromWorker]:
        """The worker's messages until it ends. Raises BadFrame."""
        while (body := self._pipe.read()) is not None:
            yield read_from_worker(body)

    def close(self) -> str:
        """Stop the process if it is running; returns how it ended."""
        self._pipe.close()
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code < 0:
            return f"was ended by {_name(-code)}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """Kill the process; `messages` then ends."""
        self._process.kill()

    def _next(self, progress: Callable[[int, int], None]) -> FromWorker:
        """The next message other than progress."""
        for message in self.messages():
            if isinstance(message, LoadProgress):
                progress(message.done_bytes, message.total_bytes)
            elif isinstance(message, ModelRejected):
                raise message.error
            else:
                return message
        raise EngineStopped(f"the model's worker process {self.close()} while the model loaded: see the log")


def _name(number: int) -> str:
    """Of a signal. Most of those for real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
