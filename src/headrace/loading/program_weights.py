"""A checkpoint as a program reads it: parts and stacks of stored tensors, and what is computed
from some, are tensors of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Array, Ints
from headrace.program.program import Program
from headrace.weights.checkpoint_reader import TensorReader
from headrace.weights.quant_types import BY_NAME
from headrace.weights.tensor_file import TensorInfo

_BLOCK_BYTES = 4 << 20  # of a transposed tensor in memory at a time
_MAX_SPAN = 4  # times the rows of a part that is read in one piece


class ProgramWeights:
    """Reads a checkpoint as the checkpoint itself does, and the parts and stacks that a program needs."""

    def __init__(self, checkpoint: TensorReader, program: Program) -> None:
        self._checkpoint = checkpoint
        self._program = program
        self._computed: tuple[str, Array] | None = None  # the last one: its rows are read block by block

    @property
    def fingerprint(self) -> str:
        """The checkpoint's own: the name of a part or a stack says what it is."""
        return self._checkpoint.fingerprint

    def info(self, name: str) -> TensorInfo:
        """As if the part or stack were stored alone; CorruptFile where what is stored has another shape,
        UnsupportedModel where the tensors of a stack differ in type."""
        if name in self._program.derived:
            return self._derived_info(name)
        if name in self._program.stacks:
            return self._stack_info(name)
        if name not in self._program.parts:
            return self._checkpoint.info(name)
        tensor, part = self._program.parts[name]
        info = self._checkpoint.info(tensor)
        shape = tuple(int(size) for size in self._program.weights[name].shape)
        wholes = part.stored_shapes(shape)
        if info.shape not in wholes:
            raise CorruptFile(
                f"tensor {tensor} has shape {info.shape}, config.json implies "
                f"{' or '.join(map(str, wholes))}: the weights do not belong to this config"
            )
        if self._is_dequantized(name):
            return replace(info, name=name, dtype="F32", shape=shape, nbytes=4 * math.prod(shape))
        nbytes = info.nbytes * math.prod(shape) // math.prod(info.shape)
        return replace(info, name=name, shape=shape, nbytes=nbytes)

    def _derived_info(self, name: str) -> TensorInfo:
        infos: list[TensorInfo] = []
        for tensor, shape in self._program.derived[name].tensors:
            infos.append(self._checkpoint.info(tensor))
            if infos[-1].shape != shape:
                raise CorruptFile(
                    f"tensor {tensor} has shape {infos[-1].shape}, config.json implies {shape}: "
                    "the weights do not belong to this config"
                )
        shape = tuple(int(size) for size in self._program.weights[name].shape)
        return replace(infos[0], name=name, dtype="F32", shape=shape, nbytes=4 * math.prod(shape))

    def _derive(self, name: str) -> Array:
        if self._computed is None or self._computed[0] != name:
            self.info(name)  # checks the shapes
            derived = self._program.derived[name]
            value = derived.compute(*(self._checkpoint.float32(tensor) for tensor, _ in derived.tensors))
            self._computed = name, np.ascontiguousarray(value, np.float32)
        return self._computed[1]

    def _is_dequantized(self, name: str) -> bool:
        """Blocks of inputs cannot be turned: columns of quantized matrices are read as floats."""
        tensor, part = self._program.parts[name]
        return part.transposed and BY_NAME[self._checkpoint.row_dtype(tensor)].block_size > 1

    def _stack_info(self, name: str) -> TensorInfo:
        tensors = self._program.stacks[name]
        rows, *rest = (int(size) for size in self._program.weights[name].shape)
        shape = (rows // len(tensors), *rest)
        infos = [self._checkpoint.info(tensor) for tensor in tensors]
        for info in infos:
            if info.shape != shape:
                raise CorruptFile(
                    f"tensor {info.name} has shape {info.shape}, config.json implies {shape}: "
                    "the weights do not belong to this config"
                )
            if info.dtype != infos[0].dtype:
                raise UnsupportedModel(
                    f"tensor {info.name} is stored as {info.dtype}, {infos[0].name} as {infos[0].dtype}: "
                    "experts of one layer must have one type"
                )
        return replace(infos[0], name=name, shape=(rows, *rest), nbytes=sum(info.nbytes for info in infos))

    def input_order(self, name: str) -> Ints | None:
        """Which input each column multiplies, None for their own order; of a stack that of its first tensor
        which has one."""
        if name in self._program.derived:
            return None
        tensor, _ = self._program.parts.get(name, (name, None))
        orders = map(self._checkpoint.input_order, self._program.stacks.get(name, (tensor,)))
        return next((order for order in orders if order is not None), None)

    def float32(self, name: str) -> Array:
        """A copy of the tensor, the part or the stack, or what is computed."""
        if name in self._program.derived:
            return self._derive(name).copy()
        if name in self._program.stacks:
            return np.concatenate([self._checkpoint.float32(tensor) for tensor in self._program.stacks[name]])
        if name not in self._program.parts:
            return self._checkpoint.float32(name)
        shape = self.info(name).shape
        tensor, part = self._program.parts[name]
        whole = self._checkpoint.float32(tensor)
        if part.transposed:
            whole = whole.reshape(part.matrices, -1, part.of // part.matrices).transpose(0, 2, 1)
        rows = whole.reshape(part.of, *whole.shape[whole.ndim - len(shape) + 1 :])
        return rows[(part.rows(0, shape[0]), *(slice(size) for size in shape[1:]))] + np.float32(part.plus)

    def row_dtype(self, name: str) -> str:
        """Type of what `read_rows` gives; F32 for columns of quantized matrices and for what is computed."""
        if name in self._program.derived:
            return "F32"
        stack = self._program.stacks.get(name)
        tensor, part = self._program.parts.get(name, (stack[0] if stack else name, None))
        if part is not None and self._is_dequantized(name):
            return "F32"
        return self._checkpoint.row_dtype(tensor)

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows as row_dtype, into the start of `out`, a flat view of bytes."""
        if name in self._program.derived:
            values = self._derive(name)[start_row : start_row + row_count]
            np.frombuffer(out, np.float32, values.size)[:] = values.reshape(-1)
            return
        if name in self._program.stacks:
            self._read_stack(name, start_row, row_count, out)
            return
        if name not in self._program.parts:
            self._checkpoint.read_rows(name, start_row, row_count, out)
            return
        tensor, part = self._program.parts[name]
        rows, k = part.rows(start_row, row_count), self.info(name).shape[1]
        if self._is_dequantized(name):
            values = self.float32(name)[start_row : start_row + row_count]
            np.frombuffer(out, np.float32, values.size)[:] = values.reshape(-1)
        elif part.transposed:
            self._read_columns(tensor, part, rows, k, out)
        else:
            self._read_runs(tensor, rows, BY_NAME[self.row_dtype(name)].row_bytes(k), out)

    def _read_stack(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        info, tensors, done = self.info(name), self._program.stacks[name], 0
        rows = info.shape[0] // len(tensors)  # of each tensor
        row_bytes = BY_NAME[self.row_dtype(name)].row_bytes(info.shape[1])
        while done < row_count:
            tensor, first = divmod(start_row + done, rows)
            count = min(rows - first, row_count - done)
            part = out.cast("B")[done * row_bytes : (done + count) * row_bytes]
            self._checkpoint.read_rows(tensors[tensor], first, count, part)
            done += count

    def _read_runs(self, tensor: str, rows: Ints, row_bytes: int, out: memoryview) -> None:
        first, span = int(rows.min()), int(np.ptp(rows)) + 1
        if len(rows) < span <= _MAX_SPAN * len(rows):  # cheaper to read what lies between, too
            block = np.empty((span, row_bytes), np.uint8)
            self._checkpoint.read_rows(tensor, first, span, block.reshape(-1).data)
            np.frombuffer(out, np.uint8, len(rows) * row_bytes).reshape(-1, row_bytes)[:] = block[
                rows - first
            ]
            return
        done = 0
        for first, count in _runs(rows):
            end = done + count * row_bytes
            self._checkpoint.read_rows(tensor, first, count, out.cast("B")[done:end])
            done = end

    def _read_columns(self, tensor: str, part: TensorSlice, rows: Ints, k: int, out: memoryview) -> None:
        """The first k numbers of columns of stored matrices as rows; all k rows of a matrix are read."""
        width = BY_NAME[self._checkpoint.row_dtype(tensor)].block_bytes
        target = np.frombuffer(out, np.uint8, len(rows) * k * width).view(f"V{width}").reshape(len(rows), k)
        matrices, columns = np.divmod(rows, part.of // part.matrices)
        for matrix in np.unique(matrices):
            here = np.flatnonzero(matrices == matrix)
            for start, block in self._rows_of_matrix(tensor, part, int(matrix), k):
                target[here, start : start + len(block)] = block.T[columns[here]]

    def _rows_of_matrix(
        self, tensor: str, part: TensorSlice, matrix: int, k: int
    ) -> Iterator[tuple[int, Any]]:
        """(first row, rows) of the first k rows of one of a tensor's matrices, block by block."""
        *_, inputs, columns = self._checkpoint.info(tensor).shape
        stacked = len(self._checkpoint.info(tensor).shape) == 3  # read_rows then counts matrices
        inputs = inputs if stacked else inputs // part.matrices
        width = BY_NAME[self._checkpoint.row_dtype(tensor)].block_bytes
        step = inputs if stacked else max(_BLOCK_BYTES // (columns * width), 1)
        for start in range(0, k, step):
            count = inputs if stacked else min(step, k - start)
            block = np.empty((count, columns), f"V{width}")
            place = (matrix, 1) if stacked else (matrix * inputs + start, count)
            self._checkpoint.read_rows(tensor, *place, block.reshape(-1).view(np.uint8).data)
            yield start, block[: k - start]


def _runs(rows: Ints) -> Iterator[tuple[int, int]]:
    """(first, count) of every run of consecutive rows."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        yield int(run[0]), len(run)
