"""MXFP4: 32 floats of 4 bits (E2M1) with a power of two (E8M0), OCP Microscaling Formats 1.0.

Nibbles hold weights 0 to 15 low and 16 to 31 high, as in Q4_0. As in ggml the values are doubled and the
scale halved, and the exponent 255 is a number, not the NaN of the specification.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, bit_fields, fields

DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


def _mxfp4(blocks: Bytes) -> Floats:
    exponent, codes = fields(blocks, 1, 16)
    return _half_scale(exponent) * DOUBLED[bit_fields(codes, 16, 4)]


def _half_scale(exponent: Bytes) -> Floats:
    """2 ** (exponent - 128), of which the first two are subnormal."""
    wide = exponent.astype(np.uint32)
    normal = (wide - np.uint32(1)) << np.uint32(23)
    return np.where(wide < 2, np.uint32(0x200000) << wide, normal).astype(np.uint32).view(np.float32)


TYPES = (BlockType("MXFP4", 39, 32, 17, _mxfp4),)
