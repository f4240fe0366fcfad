"""The numbers that a format can hold: scales are fitted to a block of columns, then each is rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.loading.export import Export
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.quantize import (
    KBlocks,
    SixBlocks,
    fit_k_blocks,
    fit_six_blocks,
    fit_symmetric,
    half,
    q4_0_blocks,
    to_bf16,
)
from headrace.weights.safetensors.export import PackedRows
from headrace.weights.safetensors.rotated_rows import RotatedRows
from headrace.weights.tensor_output import Converter
from headrace.weights.tensor_roles import class_of


class Fitted(Struct, frozen=True, eq=False):
    """Scales of a block of columns: a number of column j is scale[:, j] * code + offset[:, j], for codes from
    `low` to `high`. Both are [n, block]. `stored` is what the format keeps of them."""

    scale: Floats
    offset: Floats
    low: int
    high: int
    stored: object

    def codes(self, column: int, values: Floats) -> Floats:
        """The nearest codes [n] of a column's values; 0, or the nearest to it, where the scale is 0."""
        scale = self.scale[:, column]
        safe = np.where(scale == 0, np.float32(1), scale)
        steps = np.where(scale == 0, np.float32(0), (values - self.offset[:, column]) / safe)
        return np.clip(np.rint(steps), np.float32(self.low), np.float32(self.high))

    def values(self, column: int, codes: Floats) -> Floats:
        """What the codes stand for, [n]."""
        return self.scale[:, column] * codes + self.offset[:, column]


class Grid(Protocol):
    """A format."""

    @property
    def block(self) -> int:
        """So many columns have scales that are fitted together."""
        ...

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """Scales for columns [n, block], whose squared errors count by `importance` [block]."""
        ...

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """The rows' bytes [n, bytes of a row] of all blocks, each with its codes [n, block]."""
        ...

    def unpack(self, data: Bytes) -> Floats:
        """The numbers [n, k] that such bytes stand for."""
        ...


class RotatedInt4(Struct, frozen=True):
    """The rotated int4 of the loader, for rows of `k` inputs; `gptq_rotated` rounds to it, since its
    columns are those of rotated weights. The bytes of a row are those of RotatedRows."""

    k: int

    def unpack(self, data: Bytes) -> Floats:
        """The numbers that such bytes stand for."""
        return RotatedRows("int4", self.k).decode(data)


class Int4Groups(Struct, frozen=True):
    """compressed-tensors' `pack-quantized` with 4 bits: groups of `block` inputs with a bf16 scale. The bytes
    of a row are all its codes, then all its scales."""

    block: int = 32

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """Symmetric."""
        scale, _ = fit_symmetric(columns, -8, 7, importance[None, :])
        stored, rounded = to_bf16(scale)
        wide = np.repeat(rounded, self.block, axis=1)
        return Fitted(wide, np.zeros_like(wide), -8, 7, stored)

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """Two codes a byte, the first in the low half."""
        codes = np.concatenate([codes for _, codes in blocks], axis=1)
        unsigned = (codes + 8).astype(np.uint8)
        packed = unsigned[:, ::2] | unsigned[:, 1::2] << np.uint8(4)
        return np.concatenate([packed, *(_bytes(fitted.stored) for fitted, _ in blocks)], axis=1)

    def unpack(self, data: Bytes) -> Floats:
        """As compressed-tensors does."""
        return PackedRows(4, self.block).decode(data)


class Int8Rows(Struct, frozen=True):
    """compressed-tensors' 8 bits: one bf16 scale for a row of `block` inputs. The bytes of a row are its
    codes, then its scale."""

    block: int

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """Symmetric."""
        stored, scale = to_bf16(fit_symmetric(columns, -127, 127, importance[None, :])[0])
        wide = np.broadcast_to(scale, columns.shape)
        return Fitted(wide, np.broadcast_to(np.float32(0), columns.shape), -127, 127, stored)

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """Of the one block."""
        return np.concatenate(
            [
                part
                for fitted, codes in blocks
                for part in ((codes + 128).astype(np.uint8), _bytes(fitted.stored))
            ],
            axis=1,
        )

    def unpack(self, data: Bytes) -> Floats:
        """As compressed-tensors does."""
        return PackedRows(8, self.block).decode(data)


class Q4Zero(Struct, frozen=True):
    """GGUF's Q4_0."""

    block: int = 32

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """Symmetric, with a half-float scale."""
        scale = half(fit_symmetric(columns, -8, 7, importance[None, :])[0])
        wide = np.repeat(scale.astype(np.float32), self.block, axis=1)
        return Fitted(wide, np.zeros_like(wide), -8, 7, scale)

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """Block after block."""
        return np.concatenate(
            [q4_0_blocks(_halves(fitted.stored), codes) for fitted, codes in blocks], axis=1
        )

    def unpack(self, data: Bytes) -> Floats:
        """As ggml does."""
        return _of_ggml("Q4_0", data)


class KGrid(Struct, frozen=True):
    """GGUF's Q4_K (`top` 15) and Q5_K (31)."""

    top: int
    block: int = 256

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """Scales and minima of 32 columns each, all before the first column is rounded."""
        del importance  # the search has no weights
        fitted = fit_k_blocks(columns, self.top)
        steps, below = (np.repeat(part, 32, axis=1) for part in (fitted.steps, fitted.below))
        return Fitted(steps, -below, 0, self.top, fitted)

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """Block after block."""
        return np.concatenate(
            [
                _k_blocks(fitted.stored).pack(codes.astype(np.uint8).reshape(-1, 8, 32), self.top)
                for fitted, codes in blocks
            ],
            axis=1,
        )

    def unpack(self, data: Bytes) -> Floats:
        """As ggml does."""
        return _of_ggml("Q4_K" if self.top < 16 else "Q5_K", data)


class SixGrid(Struct, frozen=True):
    """GGUF's Q6_K."""

    block: int = 256

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """Scales of 16 columns each, all before the first column is rounded."""
        fitted = fit_six_blocks(columns, importance)
        steps = np.repeat(fitted.steps, 16, axis=1)
        return Fitted(steps, np.zeros_like(steps), -32, 31, fitted)

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """Block after block."""
        return np.concatenate([_six_blocks(fitted.stored).pack(codes) for fitted, codes in blocks], axis=1)

    def unpack(self, data: Bytes) -> Floats:
        """As ggml does."""
        return _of_ggml("Q6_K", data)


def _of_ggml(kind: str, data: Bytes) -> Floats:
    return dequantize(BY_NAME[kind], np.ascontiguousarray(data).reshape(-1)).reshape(len(data), -1)


def _bytes(stored: object) -> Bytes:
    return cast("Bytes", stored)


def _halves(stored: object) -> NDArray[np.float16]:
    return cast("NDArray[np.float16]", stored)


def _k_blocks(stored: object) -> KBlocks:
    return cast("KBlocks", stored)


def _six_blocks(stored: object) -> SixBlocks:
    return cast("SixBlocks", stored)


GGUF_GRIDS: Mapping[str, Grid] = {
    "Q4_0": Q4Zero(),
    "Q4_K": KGrid(15),
    "Q5_K": KGrid(31),
    "Q6_K": SixGrid(),
}


def grid_for(export: Export, *, is_gguf: bool) -> Callable[[str], Grid | RotatedInt4 | None]:
    """The grid of each matrix of a checkpoint that is exported; None where it is not rounded to few bits, or
    is turned on its way."""
    folder, gguf = export.folder(Converter(1)), export.gguf(Converter(1)) if is_gguf else None

    def of(name: str) -> Grid | RotatedInt4 | None:
        if gguf is None:
            if not folder.is_quantized(name):
                return None
            k = export.checkpoint.info(name).shape[1]
            return (
                RotatedInt4(k)
                if export.type == "int4"
                else Int4Groups()
                if export.type == "w4a16"
                else Int8Rows(k)
            )
        if len(export.checkpoint.info(name).shape) != 2 or gguf.is_turned(name):
            return None
        if class_of(name, 2) in ("token table", "output"):
            return None  # large and stored in more bits: a calibration would need several times their memory
        return GGUF_GRIDS.get(gguf.type_of(name))

    return of
