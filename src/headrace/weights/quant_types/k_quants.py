"""Q2_K to Q6_K: 256 weights in groups of 16 or 32 whose scales (and minima) are themselves quantized.

Layouts: block_q*_K of ggml/src/ggml-common.h.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, bit_fields, fields, half, signed


def _q2_k(blocks: Bytes) -> Floats:
    """16 bytes of a 4-bit scale and a 4-bit minimum, 64 bytes of 2-bit codes, their two multipliers."""
    packed, codes, scale, minimum = fields(blocks, 16, 64, 2, 2)
    scales = half(scale) * (packed & np.uint8(15)).astype(np.float32)
    minima = half(minimum) * (packed >> np.uint8(4)).astype(np.float32)
    return _affine(scales, bit_fields(codes, 32, 2), minima)


def _q3_k(blocks: Bytes) -> Floats:
    """32 bytes of third bits (a cleared one means minus 4), 64 of 2-bit codes, 12 of 6-bit scales."""
    high, codes, packed, scale = fields(blocks, 32, 64, 12, 2)
    low_scales, high_scales = fields(packed, 8, 4)
    scales = bit_fields(low_scales, 8, 4) | (bit_fields(high_scales, 4, 2) << np.uint8(4))
    return _grouped(
        half(scale) * signed(scales, 32),
        signed(bit_fields(codes, 32, 2) | (bit_fields(high, 32, 1) << np.uint8(2)), 4),
    )


def _q4_k(blocks: Bytes) -> Floats:
    """12 bytes of 6-bit scales and minima, 128 bytes of nibbles."""
    scale, minimum, packed, codes = fields(blocks, 2, 2, 12, 128)
    scales, minima = _six_bits(packed)
    return _affine(half(scale) * scales, bit_fields(codes, 32, 4), half(minimum) * minima)


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with 32 bytes of fifth bits: bit g of byte i belongs to weight i of group g."""
    scale, minimum, packed, high, low = fields(blocks, 2, 2, 12, 32, 128)
    scales, minima = _six_bits(packed)
    codes = bit_fields(low, 32, 4) | (bit_fields(high, 32, 1) << np.uint8(4))
    return _affine(half(scale) * scales, codes, half(minimum) * minima)


def _q6_k(blocks: Bytes) -> Floats:
    """128 bytes of nibbles, 64 of upper bit pairs, 16 signed bytes of scales."""
    low, high, packed, scale = fields(blocks, 128, 64, 16, 2)
    codes = bit_fields(low, 64, 4) | (bit_fields(high, 32, 2) << np.uint8(4))
    return _grouped(half(scale) * signed(packed, 0), signed(codes, 32))


def _six_bits(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima from 12 bytes. The first four of each are the low six bits of bytes 0-3
    and 4-7, whose upper two bits complete the last four: nibbles of bytes 8-11, scales low, minima high."""
    first, second, last = fields(packed, 4, 4, 4)
    top = np.uint8(0x30)
    scales = (first & np.uint8(63), (last & np.uint8(15)) | ((first >> np.uint8(2)) & top))
    minima = (second & np.uint8(63), (last >> np.uint8(4)) | ((second >> np.uint8(2)) & top))
    return (
        np.concatenate(scales, axis=1).astype(np.float32),
        np.concatenate(minima, axis=1).astype(np.float32),
    )


def _grouped(scales: Floats, values: Floats) -> Floats:
    """Values [n, 256] times scales [n, groups]."""
    groups = values.reshape(*scales.shape, -1)
    return (scales[:, :, None] * groups).reshape(values.shape)


def _affine(scales: Floats, codes: Bytes, minima: Floats) -> Floats:
    """scale * code - minimum by group."""
    groups = codes.reshape(*scales.shape, -1).astype(np.float32)
    return (scales[:, :, None] * groups - minima[:, :, None]).reshape(codes.shape)


TYPES = (
    BlockType("Q2_K", 10, 256, 84, _q2_k),
    BlockType("Q3_K", 11, 256, 110, _q3_k),
    BlockType("Q4_K", 12, 256, 144, _q4_k),
    BlockType("Q5_K", 13, 256, 176, _q5_k),
    BlockType("Q6_K", 14, 256, 210, _q6_k),
)
