"""U4_G32, S8_G32, E4M3_G32, E2M1_G16: a float32 scale for 16 or 32 weights.

No file holds these blocks: readers of GPTQ, AWQ, compressed-tensors, FP8 and NVFP4 checkpoints make them,
which is lossless where a group of the checkpoint is a multiple of the block. Fields, in this order:

- U4_G32: float32 scale, uint8 zero, 16 bytes of nibbles; scale * (code - zero).
- S8_G32: float32 scale, 32 int8; scale * value.
- E4M3_G32: float32 scale, 32 bytes of FP8 E4M3FN (OCP 8-bit Floating Point Specification); scale * value.
- E2M1_G16: float32 scale, 8 bytes of E2M1 nibbles; scale * value.

Nibbles hold the first half of the weights low, the second half high.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, bit_fields, fields, signed
from headrace.weights.quant_types.mxfp4 import DOUBLED


def _e4m3_values() -> Floats:
    """The 256 values: sign, 4 bits of exponent (bias 7), 3 of mantissa; all ones but the sign are a NaN."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[127] = np.nan
    return np.concatenate([magnitude, -magnitude]).astype(np.float32)


E4M3 = _e4m3_values()


def _u4(blocks: Bytes) -> Floats:
    scale, zero, codes = fields(blocks, 4, 1, 16)
    return scale.view("<f4") * (bit_fields(codes, 16, 4).astype(np.float32) - zero.astype(np.float32))


def _s8(blocks: Bytes) -> Floats:
    scale, codes = fields(blocks, 4, 32)
    return scale.view("<f4") * signed(codes, 0)


def _e4m3(blocks: Bytes) -> Floats:
    scale, codes = fields(blocks, 4, 32)
    return scale.view("<f4") * E4M3[codes]


def _e2m1(blocks: Bytes) -> Floats:
    """As in MXFP4 the values are doubled and the scale halved, and minus zero is zero."""
    scale, codes = fields(blocks, 4, 8)
    return scale.view("<f4") * np.float32(0.5) * DOUBLED[bit_fields(codes, 8, 4)]


TYPES = (
    BlockType("U4_G32", None, 32, 21, _u4),
    BlockType("S8_G32", None, 32, 36, _s8),
    BlockType("E4M3_G32", None, 32, 36, _e4m3),
    BlockType("E2M1_G16", None, 16, 12, _e2m1),
)
