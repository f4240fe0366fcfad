"""R4 and R8: rows of the int4 and int8 formats as they are before they are packed, rotated block by block.

A block is as wide as the rotation is: 128 weights, or 64 or 32 where the rows are no multiple of 128. The
reader of Headrace's own folders makes them. Fields, in this order:

- R4_*: float32 scale; for every 32 weights uint8 multiplier, uint8 offset, 16 bytes of nibbles that hold the
  first half of the weights low, the second half high; scale * (multiplier * code + offset - 128).
- R8_*: float32 scale; int8; scale * value.

The scale is that of the whole row, and the products of a block with the orthonormal Hadamard matrix are the
weights.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, fields, signed

GROUP = 32
GROUP_BYTES = 2 + GROUP // 2
SCALE_BYTES = 4


def rotate(x: Floats, block: int) -> Floats:
    """Rotate the last axis, a multiple of `block`, block by block. Its own inverse up to rounding."""
    blocks = x.reshape(-1, block)
    distance = 1
    while distance < block:
        pairs = blocks.reshape(-1, block // (2 * distance), 2, distance)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        blocks = np.stack([a + b, a - b], axis=2).reshape(-1, block)
        distance *= 2
    return (blocks * np.float32(block**-0.5)).reshape(x.shape)


def _r4(blocks: Bytes) -> Floats:
    scale, groups = fields(blocks, SCALE_BYTES, blocks.shape[1] - SCALE_BYTES)
    multiplier, offset, nibbles = fields(groups.reshape(-1, GROUP_BYTES), 1, 1, GROUP // 2)
    codes = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=1).astype(np.float32)
    integers = multiplier.astype(np.float32) * codes
    integers += offset.astype(np.float32) - np.float32(128)
    values: Floats = scale.view("<f4") * integers.reshape(len(blocks), -1)
    return rotate(values, values.shape[1])


def _r8(blocks: Bytes) -> Floats:
    scale, codes = fields(blocks, SCALE_BYTES, blocks.shape[1] - SCALE_BYTES)
    values: Floats = scale.view("<f4") * signed(codes, 0)
    return rotate(values, values.shape[1])


def _types(block: int) -> tuple[BlockType, BlockType]:
    of_groups = SCALE_BYTES + block // GROUP * GROUP_BYTES
    return (
        BlockType(f"R4_{block}", None, block, of_groups, _r4),
        BlockType(f"R8_{block}", None, block, SCALE_BYTES + block, _r8),
    )


TYPES = (*_types(32), *_types(64), *_types(128))
FORMATS = {kind.name: "int4" if kind.name.startswith("R4") else "int8" for kind in TYPES}
"""The format that takes a type's rows as they are."""
