"""An executor that is the first rank of a model, and whose other ranks run in processes of their own.

Each gets every step, and computes its share of every product's outputs (program/shares.py). The ranks meet in
native code, in memory that all have mapped; what the first one returns is the whole program's result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace import _native
from headrace.errors import EngineStopped, UnsupportedModel
from headrace.executors.adapters import Adapter
from headrace.executors.executor import ExecutorLimits
from headrace.executors.native import NativeExecutor
from headrace.executors.rank_cores import stay_on
from headrace.executors.stage_channel import (
    FailedMessage,
    ReadyMessage,
    StageChannel,
    StepMessage,
    step_message,
    step_of,
)
from headrace.ops.value import Array
from headrace.program.step import Step


class TensorParallelExecutor:
    """Runs `own` while the others do; `ended` says which process has ended, and how. `cores`: those of the
    thread that runs steps, where it has some of its own."""

    def __init__(
        self,
        own: NativeExecutor,
        pool: _native.Pool,
        others: Sequence[StageChannel],
        ended: Callable[[], str],
        *,
        cores: Sequence[int] = (),
    ) -> None:
        self.capacity: ExecutorLimits = own.capacity
        self._own, self._pool = own, pool
        self._others, self._ended = tuple(others), ended
        self._cores, self._thread = tuple(cores), 0

    @property
    def adapter_bytes(self) -> int:
        """See Executor."""
        return self._own.adapter_bytes

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """UnsupportedModel."""
        raise UnsupportedModel(
            f"the model is split over {len(self._others) + 1} processes (tensor_parallel_size), which take no"
            " adapters: load it without",
            param="tensor_parallel_size",
        )

    def wait(self) -> ReadyMessage:
        """Until all ranks have loaded their weights. EngineStopped where one cannot."""
        failures = damages = 0
        for rank, other in enumerate(self._others, 1):
            try:
                answer = other.receive()
            except OSError:
                answer = None
            if isinstance(answer, FailedMessage):
                self.close()
                raise EngineStopped(f"rank {rank} of {len(self._others) + 1} failed: {answer.cause}")
            if not isinstance(answer, ReadyMessage):
                raise self._failure()
            failures, damages = failures + answer.failures, damages + answer.damages
        return ReadyMessage(failures, damages)

    def given(self, rows: int, columns: int) -> Array:
        """See NativeExecutor: all ranks read it."""
        return self._own.given(rows, columns)

    def run(self, step: Step) -> Array:
        """See Executor. EngineStopped where a rank has ended."""
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            stay_on(self._cores)
        message = step_message(step, self._pool.width, (0, 0))
        try:
            for other in self._others:
                other.send(message)
            return self._own.run(step)
        except (OSError, RuntimeError):
            raise self._failure() from None

    def close(self) -> None:
        """The others read the end, and end."""
        for other in self._others:
            other.close()

    def _failure(self) -> EngineStopped:
        self.close()
        return EngineStopped(f"the model runs in several processes, and {self._ended()}")


def serve_rank(executor: NativeExecutor, pool: _native.Pool, first: StageChannel) -> None:
    """A rank's loop, until the first one is gone or another is lost."""
    while isinstance(message := first.receive(), StepMessage):
        pool.set_width(message.width)
        try:
            executor.run(step_of(message))
        except ValueError:
            continue  # the first rank has refused the same step
        except RuntimeError:
            return
