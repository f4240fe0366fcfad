"""From codes and scales of whole rows to the blocks of block types; the inverse of their dequantization.

`codes` are [rows, k], scales and zeros [rows, blocks], results [rows, bytes of a row].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.weights.quant_types.block_type import Bytes, Floats


def u4_blocks(codes: Bytes, scale: Floats, zero: Bytes) -> Bytes:
    """U4_G32: codes and zeros 0 to 15."""
    return _joined(_raw(scale), zero[:, :, None], half_nibbles(codes, 32))


def byte_blocks(codes: NDArray[Any], scale: Floats) -> Bytes:
    """S8_G32 and E4M3_G32: codes of one byte."""
    return _joined(_raw(scale), codes.view(np.uint8).reshape(*scale.shape, 32))


def e2m1_blocks(codes: Bytes, scale: Floats) -> Bytes:
    """E2M1_G16: codes 0 to 15."""
    return _joined(_raw(scale), half_nibbles(codes, 16))


def mxfp4_blocks(codes: Bytes, exponent: Bytes) -> Bytes:
    """MXFP4: codes 0 to 15, E8M0 exponents."""
    return _joined(exponent[:, :, None], half_nibbles(codes, 32))


def half_nibbles(codes: Bytes, size: int) -> Bytes:
    """Nibbles [rows, blocks, size / 2], the first half of each block low and the second half high."""
    halves = codes.reshape(len(codes), -1, 2, size // 2)
    return halves[:, :, 0] | (halves[:, :, 1] << np.uint8(4))


def fields_of_words(words: NDArray[Any], bits: int) -> Bytes:
    """int32 [rows, words] to codes [rows, words * 32 / bits], the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words.view(np.uint32)[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return codes.reshape(len(words), -1).astype(np.uint8)


def nibbles_of_bytes(pairs: Bytes) -> Bytes:
    """Bytes [..., count] to codes [..., 2 * count], the low nibble first."""
    return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1).reshape(*pairs.shape[:-1], -1)


def _raw(scale: Floats) -> Bytes:
    return np.ascontiguousarray(scale, "<f4").view(np.uint8).reshape(*scale.shape, 4)


def _joined(*fields: Bytes) -> Bytes:
    return np.concatenate(fields, axis=2).reshape(len(fields[0]), -1)
