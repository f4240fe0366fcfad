"""IQ1, IQ2 and IQ3: codes that stand for vectors of 8 or 4 magnitudes, with signs and scales; and the ternary
types TQ1_0 and TQ2_0.

Layouts: block_iq* and block_tq* of ggml/src/ggml-common.h. There are no kernels for them: their weights are
rounded to int8 when they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, bit_fields, fields, half
from headrace.weights.quant_types.iq_grids import GRIDS

_BITS = np.arange(8, dtype=np.uint8)
_DELTA = np.float32(0.125)
_SEVENS = np.array([0, 7, 14, 21], np.uint32)


def _signs(bytes_: Bytes) -> Floats:
    """1 or -1 for each bit, the lowest first."""
    return np.float32(1) - np.float32(2) * ((bytes_[..., None] >> _BITS) & np.uint8(1))


def _even_signs(indices: NDArray[Any]) -> Floats:
    """Seven signs each, and an eighth that makes the number of minuses even."""
    seven = indices.astype(np.uint8)
    ones = np.unpackbits(seven[..., None], axis=-1).sum(-1).astype(np.uint8)
    return _signs(seven | (ones & np.uint8(1)) << np.uint8(7))


def _scaled(scale: Floats, grid: Floats, signs: Floats) -> Floats:
    """Blocks [n, 256] of grid vectors and signs whose scales are [n, groups]."""
    n, groups = scale.shape
    return ((scale[:, :, None] * grid.reshape(n, groups, -1)) * signs.reshape(n, groups, -1)).reshape(n, -1)


def _iq2_xxs(blocks: Bytes) -> Floats:
    scale, rest = fields(blocks, 2, 64)
    words = rest.view("<u4").reshape(len(blocks), 8, 2)
    signs = _even_signs((words[:, :, 1, None] >> _SEVENS) & np.uint32(127))
    codes = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    scales = half(scale) * (np.float32(0.5) + (words[:, :, 1] >> np.uint32(28))) * np.float32(0.25)
    return _scaled(scales.astype(np.float32), GRIDS["IQ2_XXS"][codes], signs)


def _half_scales(scale: Bytes, nibbles: Bytes) -> Floats:
    found = half(scale) * (np.float32(0.5) + bit_fields(nibbles, 1, 4)) * np.float32(0.25)
    return found.astype(np.float32)


def _iq2_xs(blocks: Bytes) -> Floats:
    scale, codes, nibbles = fields(blocks, 2, 64, 8)
    words = codes.view("<u2")
    grid = GRIDS["IQ2_XS"][words & np.uint16(511)]
    return _scaled(_half_scales(scale, nibbles), grid, _even_signs(words >> np.uint16(9)))


def _iq2_s(blocks: Bytes) -> Floats:
    scale, low, signs, high, nibbles = fields(blocks, 2, 32, 32, 8, 8)
    codes = low.astype(np.uint16) | bit_fields(high, 1, 2).astype(np.uint16) << np.uint16(8)
    return _scaled(_half_scales(scale, nibbles), GRIDS["IQ2_S"][codes], _signs(signs))


def _iq3_xxs(blocks: Bytes) -> Floats:
    scale, codes, rest = fields(blocks, 2, 64, 32)
    words = rest.view("<u4")
    signs = _even_signs((words[:, :, None] >> _SEVENS) & np.uint32(127))
    scales = half(scale) * (np.float32(0.5) + (words >> np.uint32(28))) * np.float32(0.5)
    return _scaled(scales.astype(np.float32), GRIDS["IQ3_XXS"][codes], signs)


def _iq3_s(blocks: Bytes) -> Floats:
    scale, low, high, signs, nibbles = fields(blocks, 2, 64, 8, 32, 4)
    codes = low.astype(np.uint16) | bit_fields(high, 1, 1).astype(np.uint16) << np.uint16(8)
    scales = half(scale) * (np.float32(1) + np.float32(2) * bit_fields(nibbles, 1, 4))
    return _scaled(scales.astype(np.float32), GRIDS["IQ3_S"][codes], _signs(signs))


def _moved(scale: Floats, grid: Floats, minus: NDArray[Any]) -> Floats:
    """Blocks of IQ1: scale times (a vector of -1, 0, 1, an eighth to or fro); scale [n, groups], minus
    [n, vectors]."""
    n, groups = scale.shape
    delta = np.where(minus, -_DELTA, _DELTA)
    vectors = (grid + delta[:, :, None]).reshape(n, groups, -1)
    return (scale[:, :, None] * vectors).reshape(n, -1).astype(np.float32)


def _iq1_s(blocks: Bytes) -> Floats:
    scale, low, rest = fields(blocks, 2, 32, 16)
    words = rest.view("<u2")
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    codes = low.astype(np.uint16) | high.reshape(len(blocks), 32) << np.uint16(8)
    scales = half(scale) * (np.float32(2) * ((words >> np.uint16(12)) & np.uint16(7)) + np.float32(1))
    minus = np.repeat((words & np.uint16(0x8000)) != 0, 4, axis=1)
    return _moved(scales.astype(np.float32), GRIDS["IQ1_S"][codes], minus)


def _iq1_m(blocks: Bytes) -> Floats:
    """The four nibbles of the scale are the upper ones of four words."""
    low, high, rest = fields(blocks, 32, 16, 8)
    words = rest.view("<u2")
    nibbles = (words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)
    scale = np.bitwise_or.reduce(nibbles, axis=1).astype("<u2").view("<f2").astype(np.float32)[:, None]
    small = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    scales = scale * (np.float32(2) * small.reshape(len(blocks), 16) + np.float32(1))
    parts = bit_fields(high, 1, 4)
    codes = low.astype(np.uint16) | (parts & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    return _moved(scales.astype(np.float32), GRIDS["IQ1_S"][codes], (parts & np.uint8(8)) != 0)


def _trits(field: Bytes, width: int, count: int) -> Floats:
    """`count` ternary digits of each byte, the highest first, as -1, 0, 1: first that of `width` bytes, then
    the next."""
    powers = np.array([3**i for i in range(count)], np.uint8).reshape(1, 1, count, 1)
    with np.errstate(over="ignore"):
        turned = field.reshape(len(field), -1, 1, width) * powers
    return (((turned.astype(np.uint16) * 3) >> 8).astype(np.float32) - 1).reshape(len(field), -1)


def _tq1_0(blocks: Bytes) -> Floats:
    first, second, last, scale = fields(blocks, 32, 16, 4, 2)
    return half(scale) * np.concatenate(
        [_trits(first, 32, 5), _trits(second, 16, 5), _trits(last, 4, 4)], axis=1
    )


def _tq2_0(blocks: Bytes) -> Floats:
    codes, scale = fields(blocks, 64, 2)
    return half(scale) * (bit_fields(codes, 32, 2).astype(np.float32) - 1)


def _type(name: str, id: int, nbytes: int, dequantize: Callable[[Bytes], Floats]) -> BlockType:
    return BlockType(name, id, 256, nbytes, dequantize)


TYPES = (
    _type("IQ2_XXS", 16, 66, _iq2_xxs),
    _type("IQ2_XS", 17, 74, _iq2_xs),
    _type("IQ3_XXS", 18, 98, _iq3_xxs),
    _type("IQ1_S", 19, 50, _iq1_s),
    _type("IQ3_S", 21, 110, _iq3_s),
    _type("IQ2_S", 22, 82, _iq2_s),
    _type("IQ1_M", 29, 56, _iq1_m),
    _type("TQ1_0", 34, 54, _tq1_0),
    _type("TQ2_0", 35, 66, _tq2_0),
)
