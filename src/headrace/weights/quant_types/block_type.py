"""What block types share: a description of a block, and the unpacking of its bit fields."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class BlockType(Struct, frozen=True):
    """`block_size` consecutive weights of a row take `block_bytes`. `dequantize` maps blocks
    [n, block_bytes] to weights [n, block_size]; None for types that are only known by their size. `id` is
    the number of ggml's types in GGUF files, None for the others."""

    name: str
    id: int | None
    block_size: int
    block_bytes: int
    dequantize: Callable[[Bytes], Floats] | None = None

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` weights, whole blocks."""
        return k // self.block_size * self.block_bytes


def fields(blocks: Bytes, *widths: int) -> list[Bytes]:
    """The columns of blocks [n, sum of widths], each [n, width] and contiguous."""
    ends = np.cumsum(widths)
    return [
        np.ascontiguousarray(blocks[:, end - width : end]) for end, width in zip(ends, widths, strict=True)
    ]


def half(field: Bytes) -> Floats:
    """IEEE half floats [n, 2 * count] as float32 [n, count]."""
    return field.view("<f2").astype(np.float32)


def bit_fields(field: Bytes, width: int, bits: int) -> Bytes:
    """Codes of `bits` bits from [n, bytes]: of every `width` bytes first all lowest fields, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    codes = (field.reshape(field.shape[0], -1, 1, width) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(field.shape[0], -1)


def signed(codes: Bytes, offset: int) -> Floats:
    """Codes minus `offset` as float32."""
    return (codes.view(np.int8) - np.int8(offset)).astype(np.float32)
