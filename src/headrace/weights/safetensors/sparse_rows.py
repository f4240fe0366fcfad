"""Matrices with many zeros as the sparse tensors of compressed-tensors (quantized/sparse.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.sparse import BITMASK, BITMASK_24, GROUP, KEPT, MASK, OFFSETS, SHAPE, VALUES
from headrace.weights.tensor_output import TensorOutput

Rows = Callable[[], Iterator[Bytes]]
"""A matrix as bytes of a float type [rows, bytes of a row], block by block."""


class SparseRows(Struct, frozen=True):
    """Rows [n, k] of `kind` (F32, F16, BF16) in a `format` of compressed-tensors."""

    format: str
    kind: str
    n: int
    k: int

    def outputs(self, name: str, rows: Rows) -> list[TensorOutput]:
        """The tensors of a matrix; none where the format does not hold it, or all of it is 0. The rows are
        read twice: a file says first how many numbers it has."""
        if self.format == BITMASK_24 and self.k % GROUP:
            return []
        counts = [mask.sum(axis=1, dtype=np.int64) for mask in map(self._mask, rows())]
        count = int(sum(part.sum() for part in counts))
        if not count or (self.format == BITMASK_24 and count != self.n * self.k // GROUP * KEPT):
            return []
        stem, masks, sources = name.removesuffix("weight"), list[Bytes](), (name,)

        def values() -> Iterator[Bytes]:
            masks.clear()  # filled while the values are written, which is before they are
            for block in rows():
                mask = self._mask(block)
                masks.append(np.packbits(mask, axis=1, bitorder="little"))
                yield np.ascontiguousarray(self._numbers(block)[mask]).view(np.uint8)

        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
        size = BY_NAME[self.kind].block_bytes
        width = -(-self.k // 8)
        is_24 = self.format == BITMASK_24
        shape = (self.n, self.k // GROUP * KEPT) if is_24 else (count,)
        made = [
            TensorOutput(
                f"{stem}{VALUES}", self.kind, shape, prod(shape) * size, sources, values, self.format
            ),
            TensorOutput(
                f"{stem}{MASK}", "U8", (self.n, width), self.n * width, sources, lambda: iter(masks)
            ),
            _integers(f"{stem}{SHAPE}", np.array([self.n, self.k]), (2, 1) if is_24 else (2,), sources),
        ]
        return made if is_24 else [*made, _integers(f"{stem}{OFFSETS}", ends[:-1], (self.n,), sources)]

    def _numbers(self, block: Bytes) -> NDArray[np.unsignedinteger]:
        """As whole numbers of their width [rows, k]."""
        return np.ascontiguousarray(block).view(f"<u{BY_NAME[self.kind].block_bytes}")

    def _mask(self, block: Bytes) -> NDArray[np.bool_]:
        """True for numbers that are stored: all but zeros, and with 2:4 two of each four in any case."""
        numbers = self._numbers(block)
        kept = (numbers << numbers.dtype.type(1)) != 0  # without the sign: -0 is 0
        if self.format == BITMASK:
            return kept
        groups = kept.reshape(len(kept), -1, GROUP)
        order = np.argsort(~groups, axis=2, kind="stable")[:, :, :KEPT]
        filled = groups.copy()
        np.put_along_axis(filled, order, True, axis=2)
        return filled.reshape(kept.shape)


def sparsity_config(format: str, share: float, ignored: list[str]) -> dict[str, object]:
    """What config.json says of the matrices of layers but the ignored ones; `share` is that of zeros."""
    return {
        "quant_method": "compressed-tensors",
        "sparsity_config": {
            "format": format,
            "global_sparsity": round(share, 6),
            "sparsity_structure": "2:4" if format == BITMASK_24 else "unstructured",
            "targets": ["Linear"],
            "ignore": ignored,
        },
    }


def _integers(
    name: str, values: NDArray[np.int64], shape: tuple[int, ...], sources: tuple[str, ...]
) -> TensorOutput:
    data = values.astype("<i8").view(np.uint8)
    return TensorOutput(name, "I64", shape, data.nbytes, sources, lambda: iter([data]))
