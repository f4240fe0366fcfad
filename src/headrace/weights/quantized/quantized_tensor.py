"""What the schemes share: a quantized tensor, the groups of its inputs, the grid of its scales."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats
from headrace.weights.quantized.raw_tensors import FLOATS, RawTensorReader
from headrace.weights.tensor_file import TensorInfo

Ints = NDArray[np.int32]


class QuantizedTensor(ABC):
    """A matrix [n, k] by its plain name, whose rows are blocks of one type.

    `order`, where it is not None, says which stored input each column of the rows multiplies.
    """

    order: Ints | None = None

    def __init__(
        self, stored: RawTensorReader, name: str, type: BlockType, shape: tuple[int, int], main: str
    ) -> None:
        """`main` is the stored tensor that holds the codes. UnsupportedModel for rows of no whole blocks."""
        n, k = shape
        if k % type.block_size:
            raise UnsupportedModel(
                f"tensor {name!r} has {k:,} inputs; quantized ones are supported in multiples of "
                f"{type.block_size}: use an unquantized checkpoint of the model"
            )
        self.type = type
        place = stored.tensors[main]
        nbytes = n * type.row_bytes(k)
        self.info = TensorInfo(name, type.name, shape, nbytes, place.file, place.offset)

    @abstractmethod
    def blocks(self, start_row: int, row_count: int) -> Bytes:
        """Rows as blocks, [row_count, bytes of a row]."""


class InputGroups(Struct, frozen=True, eq=False):
    """The group of each block of 32 inputs, once the inputs are in `order` (None: as they are stored)."""

    of_block: NDArray[Any]
    order: Ints | None


def read_groups(stored: RawTensorReader, name: str, k: int, groups: int) -> InputGroups:
    """From a stored index, the group of each input (`desc_act` of GPTQ). CorruptFile for groups that are not
    there, UnsupportedModel for some whose size is no multiple of 32."""
    stored.check(name, ("I32",), (k,))
    index = stored.whole(name)
    if index.min() < 0 or index.max() >= groups:
        raise CorruptFile(
            f"tensor {name!r} names groups {index.min():,} to {index.max():,}, there are 0 to "
            f"{groups - 1:,}: fetch the file again"
        )
    order = np.argsort(index, kind="stable").astype(np.int32)
    blocks = index[order][: k // 32 * 32].reshape(-1, 32)
    if (blocks[:, :1] != blocks).any():
        raise _uneven(name, int(np.bincount(index)[blocks[(blocks[:, :1] != blocks).any(axis=1)][0, 0]]))
    monotone = bool((np.diff(order) == 1).all())
    return InputGroups(blocks[:, 0], None if monotone else order)


def even_groups(name: str, k: int, size: int) -> InputGroups:
    """Groups of `size` inputs that follow each other; one of all `k` where `size` is not less."""
    if size < k and size % 32:
        raise _uneven(name, size)
    return InputGroups(np.arange(0, k, 32) // size, None)


def _uneven(name: str, size: int) -> UnsupportedModel:
    return UnsupportedModel(
        f"tensor {name!r} has a group of {size:,} inputs; supported are multiples of 32, as 32, 64 or 128: "
        "use a checkpoint with such groups, or an unquantized one"
    )


class ScaleGrid(Struct, frozen=True, eq=False):
    """Scales [rows, columns] of a matrix: each is for `height` outputs times `width` inputs."""

    stored: RawTensorReader
    name: str
    height: int
    width: int
    columns: int

    def of_blocks(self, start_row: int, row_count: int, k: int, size: int) -> Floats:
        """The scale of each block of `size` inputs, [row_count, k / size]."""
        rows = np.arange(start_row, start_row + row_count) // self.height
        first = int(rows[0]) if row_count else 0
        values = self._rows(first, int(rows[-1]) + 1 - first if row_count else 0)
        return values[rows - first][:, np.arange(0, k, size) // self.width]

    def _rows(self, start: int, count: int) -> Floats:
        shape = self.stored.tensors[self.name].shape
        values = self.stored.rows(self.name, start, count) if shape else self.stored.whole(self.name)
        return self.stored.finite(self.name, values).reshape(-1, self.columns)


def read_grid(
    stored: RawTensorReader, name: str, n: int, k: int, size: int, block: tuple[int, int] | None = None
) -> ScaleGrid:
    """How the scales of a tensor [n, k] are laid out, from their shape: one, one per output, `block`, or
    groups of inputs that are multiples of `size`. CorruptFile for any other shape."""
    info = stored.tensors.get(name)
    if info is None or info.dtype not in FLOATS:
        found = "no tensor" if info is None else f"{info.dtype} as"
        raise CorruptFile(f"the checkpoint has {found} {name!r}, scales are floats: fetch it again")
    if info.shape in ((), (1,), (1, 1)):
        return ScaleGrid(stored, name, n, k, 1)
    if block is not None and info.shape == (-(-n // block[0]), -(-k // block[1])):
        _check_width(name, block[1], k, size)
        return ScaleGrid(stored, name, *block, info.shape[1])
    if info.shape == (n,):
        return ScaleGrid(stored, name, 1, k, 1)
    if len(info.shape) != 2 or info.shape[0] != n or not 0 < info.shape[1] <= k or k % info.shape[1]:
        raise CorruptFile(
            f"{info.file.name}: tensor {name!r} has the shape {list(info.shape)}, for weights [{n}, {k}] one "
            f"scale, [{n}, 1], [{n}, groups] or blocks of {block or 'no'} expected: fetch the file again"
        )
    width = k // info.shape[1]
    _check_width(name, width, k, size)
    return ScaleGrid(stored, name, 1, width, info.shape[1])


def _check_width(name: str, width: int, k: int, size: int) -> None:
    if width < k and width % size:
        raise UnsupportedModel(
            f"tensor {name!r} scales groups of {width} inputs; supported are multiples of {size}: use a "
            "checkpoint with such groups, or an unquantized one"
        )
