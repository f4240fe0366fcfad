"""An executor that is the first stage of a model, and whose other stages run in processes of their own.

The stages are a ring: each gets a step with the rows of the one before, and the last one gives back what the
whole program computes. Instructions and kernels are those of one process, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from headrace import _native
from headrace.errors import EngineStopped, UnsupportedModel
from headrace.executors.adapters import Adapter
from headrace.executors.executor import ExecutorLimits
from headrace.executors.native import NativeExecutor
from headrace.executors.stage_channel import (
    FailedMessage,
    ReadyMessage,
    StageChannel,
    StepMessage,
    step_message,
    step_of,
)
from headrace.executors.tensor_parallel import TensorParallelExecutor
from headrace.ops.value import Array
from headrace.program.step import Step

Stage = NativeExecutor | TensorParallelExecutor


class StagedExecutor:
    """Runs `first` and sends its rows on; `ended` says which of the other processes has ended, and how."""

    def __init__(
        self,
        first: Stage,
        pool: _native.Pool,
        onward: StageChannel,
        back: StageChannel,
        ended: Callable[[], str],
        *,
        stages: int,
    ) -> None:
        self.capacity: ExecutorLimits = first.capacity
        self._first, self._pool = first, pool
        self._onward, self._back, self._ended = onward, back, ended
        self._stages = stages
        self._output = np.zeros(0, np.float32)

    @property
    def adapter_bytes(self) -> int:
        """See Executor."""
        return self._first.adapter_bytes

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """UnsupportedModel."""
        raise UnsupportedModel(
            f"the model runs in {self._stages} processes (pp), which take no adapters: load it without pp",
            param="pp",
        )

    def wait(self) -> ReadyMessage:
        """Until all stages have loaded their weights. EngineStopped where one cannot."""
        own = self._first.wait() if isinstance(self._first, TensorParallelExecutor) else ReadyMessage()
        try:
            self._onward.send(own)
            answer = self._back.receive()
        except OSError:
            answer = None
        if not isinstance(answer, ReadyMessage):
            raise self._failure(answer)
        return answer

    def run(self, step: Step) -> Array:
        """See Executor. EngineStopped where a stage has ended."""
        try:
            x = self._first.run(step)
        except EngineStopped:
            self._close()
            raise
        try:
            self._onward.send(step_message(step, self._pool.width, (len(x), x.shape[1])), x)
            answer = self._back.receive()
            if not isinstance(answer, StepMessage):
                raise self._failure(answer)
            rows, columns = answer.shape
            size = rows * columns
            if size > self._output.size:
                self._output = np.empty(size, np.float32)
            output = self._output[:size].reshape(rows, columns)
            self._back.take(output)
        except OSError:
            raise self._failure(None) from None
        return output

    def _failure(self, answer: object) -> EngineStopped:
        """What has ended, named; the others end too, also where the error keeps this object in memory."""
        self._close()
        if isinstance(answer, FailedMessage):
            return EngineStopped(
                f"stage {answer.stage + 1} of {self._stages} of the model failed: {answer.cause}"
            )
        return EngineStopped(f"the model runs in several processes, and {self._ended()}")

    def _close(self) -> None:
        self._onward.close()
        self._back.close()
        if isinstance(self._first, TensorParallelExecutor):
            self._first.close()


def serve_stage(
    executor: Stage,
    pool: _native.Pool,
    before: StageChannel,
    after: StageChannel,
    ready: ReadyMessage,
) -> None:
    """A stage's loop, until the one before is gone. OSError where the one after is."""
    while (message := before.receive()) is not None:
        if isinstance(message, ReadyMessage):
            failures, damages = message.failures + ready.failures, message.damages + ready.damages
            after.send(ReadyMessage(failures, damages))
        elif isinstance(message, FailedMessage):
            after.send(message)
        else:
            step = step_of(message)
            before.take(executor.given(*message.shape))
            pool.set_width(message.width)
            y = executor.run(step)
            after.send(replace(message, shape=(len(y), y.shape[1])), y)
