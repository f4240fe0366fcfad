"""F32, F16, BF16: one float per weight."""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4")


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


TYPES = (
    BlockType("F32", 0, 1, 4, _f32),
    BlockType("F16", 1, 1, 2, _f16),
    BlockType("BF16", 30, 1, 2, _bf16),
)
