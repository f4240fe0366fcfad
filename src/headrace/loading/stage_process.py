"""Entry point of a process with a part of a model: `python -m headrace.loading.stage_process FILES`.

File numbers, -1 for none. Of a stage's first rank: the stream and the memory from the stage before, and those
to the one after; the memory of its ranks, and a stream to each other one. Of the others: that memory, and the
stream from the first one. What to load comes as msgpack on standard input.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace import _native
from headrace.config.stderr_log import log_to_stderr
from headrace.errors import CorruptFile, EngineStopped, HeadraceError
from headrace.executors.executor import ExecutorLimits
from headrace.executors.kv_layers import KvLayers, KvType
from headrace.executors.native import NativeExecutor
from headrace.executors.rank_cores import stay_on
from headrace.executors.rank_group import group_memory
from headrace.executors.stage_channel import FailedMessage, ReadyMessage, StageChannel, mapped
from headrace.executors.staged import serve_stage
from headrace.executors.tensor_parallel import TensorParallelExecutor, serve_rank
from headrace.loading.native_weights import native_weights
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import recorded
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.stage_plan import stages_of
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.packing.packed_cache import CacheTroubles

LOG = logging.getLogger("headrace.loading")
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class StageOrder(Struct, frozen=True, kw_only=True):
    """Which part of which model, and how large: what the first process has planned. `index` counts the ranks
    of all stages."""

    model: str
    options: EngineOptions
    index: int
    cuts: tuple[int, ...]
    fingerprint: str
    kv_type: KvType
    capacity: ExecutorLimits
    threads: int
    kv: KvLayers | None
    cores: tuple[int, ...] = ()

    @property
    def stage(self) -> int:
        """Which stage it is of."""
        return self.index // self.options.tensor_parallel_size

    @property
    def rank(self) -> int:
        """Which of its stage's."""
        return self.index % self.options.tensor_parallel_size


def encode_order(order: StageOrder) -> bytes:
    """For the standard input of its process."""
    return msgspec.msgpack.encode(order, enc_hook=str)  # paths alone are no type of msgpack


def _decode_order(data: bytes) -> StageOrder:
    return msgspec.msgpack.decode(data, type=StageOrder, dec_hook=lambda kind, value: kind(value))


def main(files: list[int]) -> int:
    """Load and serve a stage; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    log_to_stderr()
    order = _decode_order(sys.stdin.buffer.read())
    stay_on(order.cores)
    return _first_of_stage(order, files) if order.rank == 0 else _other_of_stage(order, files)


def _first_of_stage(order: StageOrder, files: list[int]) -> int:
    before, after = (_channel(*pair) for pair in (files[:2], files[2:4]))
    others = [_channel(file, -1) for file in files[5:]]
    try:
        pool = _native.Pool(order.threads)
        executor, troubles = load_stage(order, pool, files[4])
        ready = ReadyMessage(troubles.failures, troubles.damages)
        if others:
            executor = TensorParallelExecutor(executor, pool, others, lambda: "one has ended: see the log")
            rest = executor.wait()
            ready = ReadyMessage(ready.failures + rest.failures, ready.damages + rest.damages)
        try:
            serve_stage(executor, pool, before, after, ready)
        except EngineStopped:
            return 1  # a rank is lost, which whoever watches it names
    except BrokenPipeError:
        return 0  # the model was closed
    except Exception as error:
        return _failed(order, error, after)
    return 0


def _other_of_stage(order: StageOrder, files: list[int]) -> int:
    first = _channel(files[1], -1)
    try:
        pool = _native.Pool(order.threads)
        executor, troubles = load_stage(order, pool, files[0])
        first.send(ReadyMessage(troubles.failures, troubles.damages))
        serve_rank(executor, pool, first)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        return _failed(order, error, first)
    return 0


def _failed(order: StageOrder, error: Exception, to: StageChannel) -> int:
    LOG.exception("process %d of the model failed", order.index + 1)
    cause = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}; see the log"
    try:
        to.send(FailedMessage(order.stage, cause))
    except OSError:
        return 0
    return 1


def _channel(stream: int, memory: int) -> StageChannel:
    return StageChannel(socket.socket(fileno=stream), mapped(memory))


def load_stage(order: StageOrder, pool: _native.Pool, group: int) -> tuple[NativeExecutor, CacheTroubles]:
    """The executor of a part with its weights; `group` is the file of the ranks' memory. CorruptFile where
    the model is another one by now."""
    with open_checkpoint(Path(order.model)) as checkpoint:
        if checkpoint.fingerprint != order.fingerprint:
            raise CorruptFile(f"{order.model} has changed while it was loaded: load it again")
        program, wanted = recorded(checkpoint, Path(order.model), order.options)
        ranks = order.options.tensor_parallel_size
        stage = stages_of(program, wanted, order.kv, order.cuts, ranks)[order.index]
        rank = stage.rank
        troubles = CacheTroubles()
        weights = native_weights(
            ProgramWeights(checkpoint, program) if rank is None else rank.weights(checkpoint),
            stage.program,
            stage.wanted,
            order.options,
            pool,
            troubles=troubles,
        )
    executor = NativeExecutor(
        stage.program,
        weights.matrices,
        weights.floats,
        order.capacity,
        pool=pool,
        kv_type=order.kv_type,
        kv=stage.kv,
        group=None if rank is None else rank.group(group_memory(group)),
    )
    return executor, troubles


if __name__ == "__main__":
    sys.exit(main([int(argument) for argument in sys.argv[1:]]))
