"""What one stage of a model sends to the next: small messages over a stream, and arrays beside them.

Arrays go through memory that both have mapped where they are on one machine, else through the stream.
A message is its length (u32, little-endian) and msgpack.
"""

from __future__ import annotations

import mmap
import struct
from typing import Protocol

import msgspec
import numpy as np
from msgspec import Struct

from headrace.ops.value import Array, Ints
from headrace.program.step import Step

MAX_MESSAGE_BYTES = 256 << 20
"""A step's block tables are the largest: 4 bytes for each page of each sequence."""
_HEADER = struct.Struct("<I")


class Stream(Protocol):
    """What is used of a socket; `SealedSocket` has it too."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class StepMessage(Struct, frozen=True, tag="step", array_like=True):
    """A step, the threads that compute it, and the rows and columns of the array that follows."""

    tokens: bytes
    positions: bytes
    slots: bytes
    query_starts: bytes
    lengths: bytes
    block_tables: bytes
    pages: int
    rows: bytes
    state_slots: bytes
    width: int
    shape: tuple[int, int]


class ReadyMessage(Struct, frozen=True, tag="ready", array_like=True):
    """Goes around once: a stage that passes it on has loaded its weights. Counts faults of their cache."""

    failures: int = 0
    damages: int = 0


class FailedMessage(Struct, frozen=True, tag="failed", array_like=True):
    """A stage cannot go on."""

    stage: int
    cause: str


StageMessage = StepMessage | ReadyMessage | FailedMessage
_DECODER = msgspec.msgpack.Decoder(StageMessage)
_ENCODER = msgspec.msgpack.Encoder()


def step_message(step: Step, width: int, shape: tuple[int, int]) -> StepMessage:
    """The message of a step."""
    return StepMessage(
        tokens=_bytes(step.tokens),
        positions=_bytes(step.positions),
        slots=_bytes(step.slots),
        query_starts=_bytes(step.query_starts),
        lengths=_bytes(step.lengths),
        block_tables=_bytes(step.block_tables),
        pages=step.block_tables.shape[1],
        rows=_bytes(step.rows),
        state_slots=_bytes(step.state_slots),
        width=width,
        shape=shape,
    )


def step_of(message: StepMessage) -> Step:
    """The step of a message; its sizes are checked where it runs."""
    return Step(
        tokens=_ints(message.tokens),
        positions=_ints(message.positions),
        slots=_ints(message.slots),
        query_starts=_ints(message.query_starts),
        lengths=_ints(message.lengths),
        block_tables=_ints(message.block_tables).reshape(-1, message.pages),
        rows=_ints(message.rows),
        state_slots=_ints(message.state_slots),
    )


class StageChannel:
    """One direction between two neighbors. `memory` holds one array, which the receiver copies out before
    it answers in any way."""

    def __init__(self, stream: Stream, memory: mmap.mmap | None) -> None:
        self._stream = stream
        self._memory = memory

    def send(self, message: StageMessage, array: Array | None = None) -> None:
        """OSError where the other side is gone."""
        if array is not None and self._memory is not None:
            _view(self._memory, array.shape)[:] = array
        body = _ENCODER.encode(message)
        self._stream.sendall(_HEADER.pack(len(body)) + body)
        if array is not None and self._memory is None:
            self._stream.sendall(np.ascontiguousarray(array).tobytes())

    def receive(self) -> StageMessage | None:
        """None at the end. OSError where that is within a message, or what comes is none."""
        header = self._exactly(_HEADER.size)
        if not header:
            return None
        (size,) = _HEADER.unpack(header)
        if size > MAX_MESSAGE_BYTES:
            raise OSError(f"a message of {size:,} bytes")
        try:
            return _DECODER.decode(self._exactly(size))
        except msgspec.DecodeError as error:
            raise OSError(f"no message: {error}") from None

    def take(self, out: Array) -> None:
        """The array that follows a message, into `out`, whose shape it has."""
        if self._memory is not None:
            out[:] = _view(self._memory, out.shape)
            return
        data = self._exactly(out.nbytes)
        out[:] = np.frombuffer(data, np.float32).reshape(out.shape)

    def close(self) -> None:
        """The other side reads the end."""
        self._stream.close()

    def _exactly(self, size: int) -> bytearray:
        """So many bytes; none where the stream ends before the first."""
        taken = bytearray()
        while len(taken) < size:
            part = self._stream.recv(min(size - len(taken), 1 << 20))
            if not part:
                if taken:
                    raise OSError("the stream ended within a message")
                break
            taken += part
        return taken


def mapped(file: int) -> mmap.mmap | None:
    """The memory of a file that both sides have; None for no file."""
    return None if file < 0 else mmap.mmap(file, 0)


def _view(memory: mmap.mmap, shape: tuple[int, ...]) -> Array:
    """Of its first bytes; ValueError where they are too few."""
    return np.ndarray(shape, np.float32, memory)


def _bytes(array: Ints) -> bytes:
    return np.ascontiguousarray(array, np.int32).tobytes()


def _ints(data: bytes) -> Ints:
    return np.frombuffer(data, np.int32)
