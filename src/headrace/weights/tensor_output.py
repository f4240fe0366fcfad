"""Tensors on their way into a new file: what they will be, their bytes block by block, and what was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from msgspec import Struct, field

from headrace.errors import CorruptFile
from headrace.weights.checkpoint_reader import CheckpointReader, TensorReader
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.tensor_roles import class_of

_BLOCK_ENTRIES = 1 << 18  # converted at once by one thread: 1 MB of floats, and what NumPy makes on the way


class TensorOutput(Struct, frozen=True):
    """One tensor of the file: its name there, the file's own name of its type, row-major shape, size, and its
    bytes from the first to the last, in blocks that are made as they are asked for. `sources`: the tensors of
    the checkpoint that it is made of; `kind`: what those are called in a report, where not by the type."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    sources: tuple[str, ...]
    blocks: Callable[[], Iterator[Bytes]]
    kind: str = ""


class Loss(Struct):
    """How far the numbers written are from those read: sums of squares, and the tensor that lost most."""

    squared_error: float = 0.0
    squared: float = 0.0
    worst: float = 0.0
    worst_tensor: str = ""

    @property
    def relative(self) -> float:
        """Root of the mean squared error, as a share of the numbers' own."""
        return (self.squared_error / self.squared) ** 0.5 if self.squared else 0.0

    def add(self, tensor: str, other: Loss) -> None:
        """Count a whole tensor in."""
        self.squared_error += other.squared_error
        self.squared += other.squared
        if other.relative > self.worst:
            self.worst, self.worst_tensor = other.relative, tensor

    def count(self, before: Floats, after: Floats) -> None:
        """Count some numbers of one tensor in."""
        difference = (after - before).reshape(-1).astype(np.float64)
        plain = before.reshape(-1).astype(np.float64)
        self.squared_error += float(difference @ difference)
        self.squared += float(plain @ plain)


class Converter(Struct):
    """Turns float blocks into bytes on several threads, in order. `losses` by tensor, as it was read."""

    threads: int
    losses: dict[str, Loss] = field(default_factory=dict[str, Loss])

    def convert(
        self,
        name: str,
        rows: Iterator[Floats],
        encode: Callable[[Floats], Bytes],
        decode: Callable[[Bytes], Floats],
    ) -> Iterator[Bytes]:
        """`encode` of each block of rows [n, bytes]; `decode` is its reverse, by which the loss is known."""
        loss = self.losses.setdefault(name, Loss())

        def one(block: Floats) -> tuple[Floats, Bytes, Floats]:
            data = encode(finite(block, name))
            return block, data, decode(data)

        with ThreadPoolExecutor(self.threads, "headrace-convert") as pool:
            pending: deque[Future[tuple[Floats, Bytes, Floats]]] = deque()
            for block in rows:
                pending.append(pool.submit(one, block))
                if len(pending) > self.threads:
                    yield self._done(pending.popleft(), loss)
            while pending:
                yield self._done(pending.popleft(), loss)

    def given(
        self, name: str, rows: Iterator[Floats], data: Bytes, decode: Callable[[Bytes], Floats]
    ) -> Iterator[Bytes]:
        """`data` [rows of all blocks, bytes], which the blocks have become already: block by block."""
        loss, start = self.losses.setdefault(name, Loss()), 0
        for block in rows:
            part = data[start : start + len(block)]
            start += len(block)
            loss.count(block, decode(part).reshape(block.shape))
            yield part

    def _done(self, future: Future[tuple[Floats, Bytes, Floats]], loss: Loss) -> Bytes:
        block, data, back = future.result()
        loss.count(block, back.reshape(block.shape))
        return data


def finite(values: Floats, name: str) -> Floats:
    """The numbers; CorruptFile where one is NaN or infinite."""
    if not np.isfinite(values).all():
        raise CorruptFile(f"tensor {name} has weights that are no finite numbers: fetch the checkpoint again")
    return values


def float_rows(source: TensorReader, name: str) -> Iterator[Floats]:
    """A tensor as float32 [rows, entries of a row], in blocks of some rows."""
    info = source.info(name)
    if len(info.shape) != 2:
        yield source.float32(name).reshape(1, -1)
        return
    n, k = info.shape
    step = max(_BLOCK_ENTRIES // max(k, 1), 1)
    for start in range(0, n, step):
        yield read_floats(source, name, start, min(step, n - start))


def read_floats(source: TensorReader, name: str, start: int, count: int) -> Floats:
    """Rows [start, start + count) of a matrix as float32."""
    kind, k = BY_NAME[source.row_dtype(name)], source.info(name).shape[1]
    raw = np.empty(count * kind.row_bytes(k), np.uint8)
    source.read_rows(name, start, count, raw.data)
    return dequantize(kind, raw).reshape(count, k)


class ClassReport(Struct, frozen=True):
    """What became of the tensors of one class that are stored as one type. Losses are relative root mean
    square errors, of the class and of its worst tensor."""

    kind: str
    type: str
    tensors: int
    bytes_before: int
    bytes_after: int
    loss: float
    worst: float
    worst_tensor: str


def report(
    source: CheckpointReader, outputs: Sequence[TensorOutput], losses: Mapping[str, Loss], type: str
) -> list[ClassReport]:
    """One line for each class and type, by class; a tensor that became several (codes and scales) counts
    once, under `type`."""
    made: dict[tuple[str, ...], list[TensorOutput]] = {}
    for output in outputs:
        if output.sources:  # else it belongs to the config
            made.setdefault(output.sources, []).append(output)
    groups: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for sources, members in made.items():
        kind = class_of(sources[0], len(source.info(sources[0]).shape))
        stored_as = members[0].kind or (members[0].type if len(members) == 1 else type.upper())
        groups.setdefault((kind, stored_as), []).append(sources)
    lines: list[ClassReport] = []
    for (kind, type_name), found in sorted(groups.items()):
        total, names = Loss(), [name for sources in found for name in sources]
        for name in names:
            total.add(name, losses.get(name, Loss()))
        before = sum(source.info(name).nbytes for name in names)
        after = sum(member.nbytes for sources in found for member in made[sources])
        lines.append(
            ClassReport(
                kind, type_name, len(names), before, after, total.relative, total.worst, total.worst_tensor
            )
        )
    return lines
