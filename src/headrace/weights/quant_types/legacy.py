"""Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: 32 weights with one half-float scale, and a minimum in the *_1 types.

Layouts: block_q* of ggml/src/ggml-common.h. Nibbles hold weights 0 to 15 low and 16 to 31 high; the fifth
bits lie together, bit i of 32 for weight i.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, bit_fields, fields, half, signed


def _q4_0(blocks: Bytes) -> Floats:
    scale, low = fields(blocks, 2, 16)
    return half(scale) * signed(bit_fields(low, 16, 4), 8)


def _q4_1(blocks: Bytes) -> Floats:
    scale, minimum, low = fields(blocks, 2, 2, 16)
    return half(scale) * bit_fields(low, 16, 4).astype(np.float32) + half(minimum)


def _q5_0(blocks: Bytes) -> Floats:
    scale, high, low = fields(blocks, 2, 4, 16)
    return half(scale) * signed(_five_bits(high, low), 16)


def _q5_1(blocks: Bytes) -> Floats:
    scale, minimum, high, low = fields(blocks, 2, 2, 4, 16)
    return half(scale) * _five_bits(high, low).astype(np.float32) + half(minimum)


def _q8_0(blocks: Bytes) -> Floats:
    scale, codes = fields(blocks, 2, 32)
    return half(scale) * signed(codes, 0)


def _five_bits(high: Bytes, low: Bytes) -> Bytes:
    fifth = np.unpackbits(high, axis=1, bitorder="little")
    return bit_fields(low, 16, 4) | (fifth << np.uint8(4))


TYPES = (
    BlockType("Q4_0", 2, 32, 18, _q4_0),
    BlockType("Q4_1", 3, 32, 20, _q4_1),
    BlockType("Q5_0", 6, 32, 22, _q5_0),
    BlockType("Q5_1", 7, 32, 24, _q5_1),
    BlockType("Q8_0", 8, 32, 34, _q8_0),
)
