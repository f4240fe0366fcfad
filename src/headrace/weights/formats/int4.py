"""int4: w_rotated = scale[output] * (multiplier * code + offset - 128), multiplier and offset per 32 inputs.

Per strip 32 float32 scales, then per group of 32 inputs 576 bytes: 32 multipliers (0..17), 32 offsets, eight
lines of 64 bytes; line 2 i + h holds outputs 16 h .. 16 h + 15 as [16][4 inputs], the low nibble being the
code of input 8 i + t, the high one that of input 8 i + 4 + t. 4.5 bits a weight; every unpacked weight is an
int8, so a row's sum is exact in int32 (native/formats/int4.hpp says why this layout).

Quantizer, per output: scale0 = largest magnitude / 127. Per group, of four multipliers (from the one that
covers the group's range downwards) and four phases of the offset the pair of least squared error, its offset
then refined once; at last the scale is fitted by least squares. In float32, sums in ascending order of
inputs: native code gives the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.weights.formats.column_panels import (
    STRIP,
    Bytes,
    Floats,
    from_strips,
    join,
    strip_count,
    to_strips,
)
from headrace.weights.formats.hadamard import (
    GROUP,
    check_integer_shape,
    rotate,
    rotate_weights,
    rotated_k,
    rotation_block,
)
from headrace.weights.formats.int8 import SCALE_BYTES, TINY, column_ranges

TOLERANCE = 2e-2  # activations are rounded to 8 bits
GROUP_BYTES = 64 + GROUP * STRIP // 2
PHASES = (-7.875, -7.625, -7.375, -7.125)


class GroupScales(NamedTuple):
    """Per group and output, [strips, groups, 32]."""

    error: Floats
    multiplier: Floats
    offset: Floats


def packed_nbytes(n: int, k: int) -> int:
    check_integer_shape(n, k)
    return strip_count(n) * (SCALE_BYTES + rotated_k(k) // GROUP * GROUP_BYTES)


def _offset_within(offset: Floats, multiplier: Floats) -> Floats:
    return np.minimum(np.maximum(offset, np.float32(-128)), np.float32(127) - np.float32(15) * multiplier)


def _codes(v: Floats, multiplier: Floats, offset: Floats) -> tuple[Floats, Floats]:
    """Codes of v [strips, groups, 32 inputs, 32 outputs], and v - offset."""
    above = v - offset[:, :, None]
    inverse = np.float32(1) / multiplier
    return np.rint(np.clip(above * inverse[:, :, None], np.float32(0), np.float32(15))), above


def _ascending_sum(values: npt.NDArray[np.floating], axis: int) -> Floats:
    return np.take(np.cumsum(values, axis=axis, dtype=np.float32), -1, axis=axis)


def _weigh(v: Floats, multiplier: Floats, offset: Floats, best: GroupScales) -> tuple[GroupScales, Floats]:
    """The better of `best` and this pair, and the mean of v - multiplier * code."""
    codes, above = _codes(v, multiplier, offset)
    miss = above - multiplier[:, :, None] * codes
    error = _ascending_sum(miss * miss, 2)
    better = error < best.error
    mean: Floats = np.add(offset, _ascending_sum(miss, 2) * np.float32(1 / GROUP))
    chosen = GroupScales(
        np.where(better, error, best.error),
        np.where(better, multiplier, best.multiplier),
        np.where(better, offset, best.offset),
    )
    return chosen, mean


def _choose(v: Floats) -> GroupScales:
    low, high = v.min(axis=2), v.max(axis=2)
    covering = np.rint((high - low) * np.float32(1 / 15) + np.float32(0.49))
    best = GroupScales(np.full_like(low, 3e38), np.ones_like(low), np.zeros_like(low))
    for less in range(4):
        multiplier = np.maximum(np.minimum(covering, np.float32(17)) - np.float32(less), np.float32(1))
        for phase in PHASES:
            offset = np.rint((low + high) * np.float32(0.5) + multiplier * np.float32(phase))
            best, _ = _weigh(v, multiplier, _offset_within(offset, multiplier), best)
    _, mean = _weigh(v, best.multiplier, best.offset, best)
    best, _ = _weigh(v, best.multiplier, _offset_within(np.rint(mean), best.multiplier), best)
    return best


def pack(w: Floats) -> Bytes:
    k = w.shape[1]
    rotated = rotate_weights(to_strips(w, rotated_k(k)), rotation_block(k))
    largest, inverse = column_ranges(rotated)
    v = (rotated * inverse[:, None]).reshape(len(rotated), -1, GROUP, STRIP)
    choice = _choose(v)
    codes, _ = _codes(v, choice.multiplier, choice.offset)
    value = (choice.multiplier[:, :, None] * codes + choice.offset[:, :, None]).reshape(rotated.shape)
    product, square = _ascending_sum(rotated * value, 1), _ascending_sum(value * value, 1)
    used = (square > 0) & (largest >= TINY)
    scale = np.where(used, product / np.where(used, square, np.float32(1)), np.float32(0))
    # [.., 4 pairs, low/high, 4 inputs, 2 halves, 16 outputs] → lines of [pair, half][output][input]
    parts = codes.astype(np.uint8).reshape(*codes.shape[:2], 4, 2, 4, 2, 16)
    lines = (parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)).transpose(0, 1, 2, 4, 5, 3)
    meta = np.concatenate([choice.multiplier, choice.offset + np.float32(128)], axis=2).astype(np.uint8)
    groups = np.concatenate([meta, lines.reshape(*codes.shape[:2], -1)], axis=2)
    return join(scale, groups)


def to_rows(packed: Bytes, n: int, k: int) -> Bytes:
    """Rows [n, bytes] as the block type R4 has them, k being a multiple of 32."""
    strips, groups = packed.reshape(strip_count(n), -1), rotated_k(k) // GROUP
    scale = strips[:, :SCALE_BYTES].reshape(-1, 4)[:n]
    parts = strips[:, SCALE_BYTES:].reshape(len(strips), groups, GROUP_BYTES)
    meta = parts[:, :, :64].reshape(-1, groups, 2, STRIP).transpose(0, 3, 1, 2).reshape(-1, groups, 2)[:n]
    lines = parts[:, :, 64:].reshape(-1, groups, 4, 2, 16, 4).transpose(0, 3, 4, 1, 2, 5)
    halves: list[Bytes] = [lines & np.uint8(15), lines >> np.uint8(4)]
    codes = np.stack(halves, axis=5).reshape(-1, groups, GROUP)[:n]
    nibbles = codes[:, :, : GROUP // 2] | codes[:, :, GROUP // 2 :] << np.uint8(4)
    width = rotation_block(k) // GROUP  # groups of a block
    of_blocks = np.concatenate([meta, nibbles], axis=2).reshape(n, groups // width, -1)
    scales = np.broadcast_to(scale[:, None], (n, groups // width, 4))
    return np.concatenate([scales, of_blocks], axis=2).reshape(n, -1)


def from_rows(rows: Bytes, k: int) -> Bytes:
    """Rows of the block type R4 packed: the reverse of `to_rows`."""
    n, groups, width = len(rows), rotated_k(k) // GROUP, rotation_block(k) // GROUP
    padded = np.zeros((strip_count(n) * STRIP, rows.shape[1]), np.uint8)
    padded[:n] = rows
    blocks = padded.reshape(len(padded), groups // width, -1)
    scale, parts = blocks[:, 0, :4], blocks[:, :, 4:].reshape(-1, groups, 2 + GROUP // 2)
    meta = parts[:, :, :2].reshape(-1, STRIP, groups, 2).transpose(0, 2, 3, 1)
    nibbles = parts[:, :, 2:]
    codes = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=2)
    pairs = codes.reshape(-1, 2, 16, groups, 4, 2, 4)
    lines = (pairs[:, :, :, :, :, 0] | pairs[:, :, :, :, :, 1] << np.uint8(4)).transpose(0, 3, 4, 1, 2, 5)
    strips = len(padded) // STRIP
    packed = np.concatenate([meta.reshape(strips, groups, -1), lines.reshape(strips, groups, -1)], axis=2)
    return join(np.ascontiguousarray(scale).reshape(strips, -1), packed)


def unpack_integers(packed: Bytes, n: int, k: int) -> tuple[Floats, Floats]:
    """Scales [strips, 32] and integers [strips, p, 32], as float32, of the rotated weights."""
    strips = packed.reshape(strip_count(n), -1)
    scale = strips[:, :SCALE_BYTES].copy().view(np.float32)
    groups = strips[:, SCALE_BYTES:].reshape(len(strips), -1, GROUP_BYTES)
    multiplier, offset = groups[:, :, None, :STRIP], groups[:, :, None, STRIP : 2 * STRIP]
    lines = groups[:, :, 64:].reshape(*groups.shape[:2], 4, 2, 16, 4).transpose(0, 1, 2, 5, 3, 4)
    codes = np.stack([lines & 15, lines >> 4], axis=3).reshape(*groups.shape[:2], GROUP, STRIP)
    stored = (multiplier * codes + offset).astype(np.uint8)  # at most 255
    return scale, stored.reshape(len(strips), -1, STRIP).astype(np.float32) - np.float32(128)


def unpack(packed: Bytes, n: int, k: int) -> Floats:
    scale, integers = unpack_integers(packed, n, k)
    return rotate(from_strips(integers * scale[:, None], n), rotation_block(k))[:, :k].copy()
