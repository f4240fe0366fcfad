"""Entry point of a process with some layers of a model: `python -m headrace.loading.stage_process FILES`.

Four file numbers: the stream and the memory from the stage before, and those to the one after. What to load
comes as msgpack on standard input.
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
from headrace.errors import CorruptFile, HeadraceError
from headrace.executors.executor import ExecutorLimits
from headrace.executors.kv_layers import KvLayers, KvType
from headrace.executors.native import NativeExecutor
from headrace.executors.stage_channel import FailedMessage, ReadyMessage, StageChannel, mapped
from headrace.executors.staged import serve_stage
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
    """Which part of which model, and how large: what the first process has planned."""

    model: str
    options: EngineOptions
    index: int
    cuts: tuple[int, ...]
    fingerprint: str
    kv_type: KvType
    capacity: ExecutorLimits
    threads: int
    kv: KvLayers | None


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
    streams = [socket.socket(fileno=files[0]), socket.socket(fileno=files[2])]
    before, after = (
        StageChannel(stream, mapped(file)) for stream, file in zip(streams, files[1::2], strict=True)
    )
    try:
        pool = _native.Pool(order.threads)
        executor, troubles = load_stage(order, pool)
        serve_stage(executor, pool, before, after, ReadyMessage(troubles.failures, troubles.damages))
    except BrokenPipeError:
        return 0  # the model was closed
    except Exception as error:
        LOG.exception("stage %d failed", order.index + 1)
        cause = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}; see the log"
        try:
            after.send(FailedMessage(order.index, cause))
        except OSError:
            return 0
        return 1
    return 0


def load_stage(order: StageOrder, pool: _native.Pool) -> tuple[NativeExecutor, CacheTroubles]:
    """The executor of a stage with its weights. CorruptFile where the model is another one by now."""
    with open_checkpoint(Path(order.model)) as checkpoint:
        if checkpoint.fingerprint != order.fingerprint:
            raise CorruptFile(f"{order.model} has changed while it was loaded: load it again")
        program, wanted = recorded(checkpoint, Path(order.model), order.options)
        stage = stages_of(program, wanted, order.kv, order.cuts)[order.index]
        troubles = CacheTroubles()
        weights = native_weights(
            ProgramWeights(checkpoint, program),
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
    )
    return executor, troubles


if __name__ == "__main__":
    sys.exit(main([int(argument) for argument in sys.argv[1:]]))
