"""Starts the processes of a model's further stages, and says how they ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress

from headrace import _native
from headrace.executors.executor import Executor
from headrace.executors.native import NativeExecutor
from headrace.executors.stage_channel import StageChannel, mapped
from headrace.executors.staged import StagedExecutor
from headrace.isolation.secret_variables import without_secrets
from headrace.loading.memory_plan import capacity_of
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import PlannedModel
from headrace.loading.stage_process import StageOrder, encode_order
from headrace.ops.value import Value

_LOOK_S, _ENDS_S = 0.05, 5.0


class StageProcesses:
    """The processes of all stages but the first, in a ring of channels that begins and ends in this one."""

    def __init__(self, prepared: PlannedModel, options: EngineOptions, *, threads: int) -> None:
        self._count = len(prepared.stages)
        self._keepers: list[_Keeper] = []
        channels: list[tuple[socket.socket, socket.socket, int]] = []
        try:
            for stage in prepared.stages:
                channels.append((*socket.socketpair(), _memory(stage.program.output, prepared, options)))
            for index in range(1, len(prepared.stages)):
                (_, up, up_memory), (down, _, down_memory) = channels[index - 1], channels[index]
                order = encode_order(stage_order(prepared, options, index, threads))
                self._keepers.append(_Keeper([up.fileno(), up_memory, down.fileno(), down_memory], order))
            for keeper in self._keepers:
                keeper.started.wait()
            self._onward = StageChannel(channels[0][0], mapped(channels[0][2]))
            self._back = StageChannel(channels[-1][1], mapped(channels[-1][2]))
        except BaseException:
            for one in channels:
                one[0].close()
                one[1].close()
            raise
        finally:
            for index, (down, up, memory) in enumerate(channels):
                if index > 0:
                    down.close()
                if index < len(channels) - 1:
                    up.close()
                if memory >= 0:
                    os.close(memory)
        self._closer = weakref.finalize(self, _close, self._onward, self._back, self._keepers)

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [keeper.pid for keeper in self._keepers]

    def executor(self, first: Executor, pool: _native.Pool) -> StagedExecutor:
        """All stages as one executor, which keeps the processes until it is gone."""
        assert isinstance(first, NativeExecutor)
        staged = StagedExecutor(first, pool, self._onward, self._back, self.ended, stages=self._count)
        weakref.finalize(staged, self.close)
        return staged

    def ended(self) -> str:
        """Which process has ended and how, once one has."""
        until_s = time.monotonic() + _ENDS_S
        while True:
            all_ended = all(keeper.stopped.is_set() for keeper in self._keepers)
            for number, keeper in enumerate(self._keepers, 2):
                if keeper.code:
                    return f"process {number} of them {_how(keeper.code)}"
            if all_ended or time.monotonic() > until_s:
                break
            time.sleep(_LOOK_S)
        return "one of them has ended: see the log"

    def close(self) -> None:
        """End the processes."""
        self._closer()


class _Keeper:
    """A process and the thread that started it and waits for it: on Linux the process ends with that thread,
    and so with this process, also where either was stopped or killed."""

    def __init__(self, files: Sequence[int], order: bytes) -> None:
        self._files, self._order = list(files), order
        self.pid, self.code = 0, None
        self.started, self.stopped = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="headrace-stage", daemon=True).start()

    code: int | None
    _process: subprocess.Popen[bytes] | None = None

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a terminal sends it to all
        command = [sys.executable, "-P", "-m", "headrace.loading.stage_process", *map(str, self._files)]
        environment = {"OPENBLAS_NUM_THREADS": "1"} | without_secrets(os.environ)
        try:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=[file for file in self._files if file >= 0],
                env=environment,
            )
            self.pid = process.pid
        except OSError:
            self.code = 1
            self.stopped.set()
            return
        finally:
            self.started.set()
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(self._order)
            process.stdin.close()
        self.code = process.wait()
        self.stopped.set()

    def end(self) -> None:
        """Wait for it; kill it where it does not end."""
        if self._process is not None and not self.stopped.wait(_ENDS_S):
            self._process.kill()
            self.stopped.wait(_ENDS_S)


def stage_order(prepared: PlannedModel, options: EngineOptions, index: int, threads: int) -> StageOrder:
    """What a stage needs to know."""
    return StageOrder(
        model=str(prepared.folder),
        options=options,
        index=index,
        cuts=prepared.cuts,
        fingerprint=prepared.checkpoint.fingerprint,
        kv_type=prepared.plan.kv_type,
        capacity=capacity_of(prepared.plan, options),
        threads=threads,
        kv=prepared.kv,
    )


def _memory(output: Value, prepared: PlannedModel, options: EngineOptions) -> int:
    """A file in memory for what a stage gives; -1 where the system has none."""
    if not hasattr(os, "memfd_create"):
        return -1
    capacity = capacity_of(prepared.plan, options)
    rows = capacity.max_tokens if output.shape[0] == "T" else capacity.max_rows
    file = os.memfd_create("headrace-stage")
    os.ftruncate(file, rows * int(output.shape[1]) * 4)
    return file


def _close(onward: StageChannel, back: StageChannel, keepers: Sequence[_Keeper]) -> None:
    onward.close()
    back.close()
    for keeper in keepers:
        keeper.end()


def _how(code: int) -> str:
    return (
        f"was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with exit code {code}: see the log"
    )
