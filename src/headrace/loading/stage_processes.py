"""Starts the processes of a model's further stages and ranks, and says how they ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.executors.executor import Executor, ExecutorLimits
from headrace.executors.native import NativeExecutor, group_bytes
from headrace.executors.rank_cores import rank_cores, usable_cores
from headrace.executors.rank_group import RankGroup, group_memory, lose_rank, new_group_memory
from headrace.executors.stage_channel import StageChannel, mapped
from headrace.executors.staged import StagedExecutor
from headrace.executors.tensor_parallel import TensorParallelExecutor
from headrace.isolation.secret_variables import without_secrets
from headrace.loading.memory_plan import capacity_of
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import PlannedModel
from headrace.loading.stage_plan import RankOf
from headrace.loading.stage_process import StageOrder, encode_order
from headrace.ops.value import Value

_LOOK_S, _ENDS_S = 0.05, 5.0


class StageProcesses:
    """All processes of a model but this one: the first ranks of the stages are a ring of channels that begins
    and ends here; each has a channel to the other ranks of its stage, and memory that they share."""

    def __init__(self, prepared: PlannedModel, options: EngineOptions, *, threads: int) -> None:
        self._ranks = ranks = options.tensor_parallel_size
        self._stages = len(prepared.stages) // ranks
        self._cores = rank_cores(usable_cores(), ranks) if ranks > 1 else ()
        self._keepers: list[_Keeper] = []
        self._memories: list[NDArray[np.uint8]] = []
        files = _Files(prepared, options)
        try:
            self._memories += map(group_memory, files.groups)
            for index in range(1, len(prepared.stages)):
                order = encode_order(stage_order(prepared, options, index, threads, self._cores_of(index)))
                self._keepers.append(_Keeper(files.of(index), order, partial(_lose, self._memories)))
            for keeper in self._keepers:
                keeper.started.wait()
            channels: list[StageChannel] = []
            if files.ring:
                (onward, _, memory), (_, back, back_memory) = files.ring[0], files.ring[-1]
                channels = [StageChannel(onward, mapped(memory)), StageChannel(back, mapped(back_memory))]
            self._ring = channels
            self._others = [StageChannel(stream, None) for stream, _ in files.links[0]]
        except BaseException:
            files.close(own=True)
            raise
        finally:
            files.close(own=False)
        self._closer = weakref.finalize(self, _close, [*self._ring, *self._others], self._keepers)

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [keeper.pid for keeper in self._keepers]

    @property
    def cores(self) -> tuple[int, ...]:
        """Those of this process's threads; none where they may run on all."""
        return self._cores_of(0)

    def group(self, rank: RankOf | None) -> RankGroup | None:
        """This process's, of the first stage's ranks."""
        return None if rank is None else rank.group(self._memories[0])

    def executor(self, first: Executor, pool: _native.Pool) -> StagedExecutor | TensorParallelExecutor:
        """All processes as one executor, which keeps them until it is gone."""
        assert isinstance(first, NativeExecutor)
        own = first
        if self._others:
            own = TensorParallelExecutor(first, pool, self._others, self.ended, cores=self.cores)
        if self._ring:
            onward, back = self._ring
            own = StagedExecutor(own, pool, onward, back, self.ended, stages=self._stages)
        assert not isinstance(own, NativeExecutor)
        weakref.finalize(own, self.close)
        return own

    def ended(self) -> str:
        """Which process has ended and how, once one has."""
        until_s = time.monotonic() + _ENDS_S
        while True:
            all_ended = all(keeper.stopped.is_set() for keeper in self._keepers)
            numbered = [
                (keeper.code, number) for number, keeper in enumerate(self._keepers, 2) if keeper.code
            ]
            if numbered:
                code, number = min(numbered)  # a signal before those that could not go on without it
                return f"process {number} of {len(self._keepers) + 1} {_how(code)}"
            if all_ended or time.monotonic() > until_s:
                break
            time.sleep(_LOOK_S)
        return "one of them has ended: see the log"

    def close(self) -> None:
        """End the processes."""
        self._closer()

    def _cores_of(self, index: int) -> tuple[int, ...]:
        return self._cores[index % self._ranks] if self._cores else ()


class _Keeper:
    """A process and the thread that started it and waits for it: on Linux the process ends with that thread,
    and so with this process, also where either was stopped or killed."""

    def __init__(self, files: Sequence[int], order: bytes, ended: Callable[[], None]) -> None:
        self._files, self._order, self._ended = list(files), order, ended
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
            self._ended()
            return
        finally:
            self.started.set()
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(self._order)
            process.stdin.close()
        self.code = process.wait()
        self.stopped.set()
        self._ended()

    def end(self) -> None:
        """Wait for it; kill it where it does not end."""
        if self._process is not None and not self.stopped.wait(_ENDS_S):
            self._process.kill()
            self.stopped.wait(_ENDS_S)


def stage_order(
    prepared: PlannedModel, options: EngineOptions, index: int, threads: int, cores: tuple[int, ...] = ()
) -> StageOrder:
    """What a process needs to know."""
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
        cores=cores,
    )


class _Files:
    """The streams between processes and their memory: `ring` has two ends and the memory between a stage and
    the next one, `links` both ends to a stage's other ranks, `groups` the memory of each stage's ranks."""

    def __init__(self, prepared: PlannedModel, options: EngineOptions) -> None:
        self._ranks = ranks = options.tensor_parallel_size
        firsts = prepared.stages[::ranks]
        self.ring: list[tuple[socket.socket, socket.socket, int]] = []
        self.groups: list[int] = []
        self.links = [[socket.socketpair() for _ in range(ranks - 1)] for _ in firsts]
        capacity = capacity_of(prepared.plan, options)
        for stage in firsts:
            if len(firsts) > 1:
                self.ring.append((*socket.socketpair(), _memory(stage.program.output, capacity)))
            if ranks > 1:
                formats = {weight.format for weight in stage.wanted}
                self.groups.append(new_group_memory(group_bytes(stage.program, formats, capacity)))

    def of(self, index: int) -> list[int]:
        """The file numbers of a process, as it takes them."""
        stage, rank = divmod(index, self._ranks)
        group = self.groups[stage] if self.groups else -1
        if rank > 0:
            return [group, self.links[stage][rank - 1][1].fileno()]
        (_, up, up_memory), (down, _, down_memory) = self.ring[stage - 1], self.ring[stage]
        others = [stream.fileno() for stream, _ in self.links[stage]]
        return [up.fileno(), up_memory, down.fileno(), down_memory, group, *others]

    def close(self, *, own: bool) -> None:
        """What this process uses, or what it does not."""
        mine = [link[0] for link in self.links[0]]
        theirs = [link[1] for link in self.links[0]]
        theirs += [end for links in self.links[1:] for link in links for end in link]
        for index, (down, up, _) in enumerate(self.ring):
            (theirs if index else mine).append(down)
            (theirs if index < len(self.ring) - 1 else mine).append(up)
        for stream in mine if own else theirs:
            stream.close()
        if not own:
            for file in [*self.groups, *(memory for _, _, memory in self.ring if memory >= 0)]:
                os.close(file)


def _memory(output: Value, capacity: ExecutorLimits) -> int:
    """A file in memory for what a stage gives; -1 where the system has none."""
    if not hasattr(os, "memfd_create"):
        return -1
    rows = capacity.max_tokens if output.shape[0] == "T" else capacity.max_rows
    file = os.memfd_create("headrace-stage")
    os.ftruncate(file, rows * int(output.shape[1]) * 4)
    return file


def _lose(memories: Sequence[NDArray[np.uint8]]) -> None:
    """Without one process none goes on: those that wait for it in native code are told."""
    for memory in memories:
        lose_rank(memory)


def _close(channels: Sequence[StageChannel], keepers: Sequence[_Keeper]) -> None:
    for channel in channels:
        channel.close()
    for keeper in keepers:
        keeper.end()


def _how(code: int) -> str:
    return (
        f"was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with exit code {code}: see the log"
    )
