"""Block types: how tensors are encoded, one file per family with layout and dequantization, in NumPy."""

from __future__ import annotations

import numpy as np

from headrace.errors import UnsupportedModel
from headrace.weights.quant_types import float_scales, floats, iq, iq4, k_quants, legacy, mxfp4, rotated
from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats

# ggml types known by their size only, so that a file which holds one can be checked and the type be named.
_UNREADABLE = (
    BlockType("Q8_1", 9, 32, 40),
    BlockType("Q8_K", 15, 256, 292),
    BlockType("I8", 24, 1, 1),
    BlockType("I16", 25, 1, 2),
    BlockType("I32", 26, 1, 4),
    BlockType("I64", 27, 1, 8),
    BlockType("F64", 28, 1, 8),
    BlockType("NVFP4", 40, 64, 36),
    BlockType("Q1_0", 41, 128, 18),
)
# READABLE are types of ggml; the SCALED ones are made by readers of other checkpoints.
READABLE = (*floats.TYPES, *legacy.TYPES, *k_quants.TYPES, *iq4.TYPES, *mxfp4.TYPES, *iq.TYPES)
SCALED = float_scales.TYPES
ROTATED = rotated.FORMATS
"""The types of Headrace's own folders, with the format that takes their rows as they are."""
HQQ = "HQQ"
"""Matrices of HQQ checkpoints, which are read as floats: their zeros are no whole numbers."""
WITHOUT_KERNEL = frozenset((*(kind.name for kind in iq.TYPES), HQQ))
"""Types whose rows are widened before they are packed, and which run as int8."""
BY_ID = {kind.id: kind for kind in (*READABLE, *_UNREADABLE)}
BY_NAME = {kind.name: kind for kind in (*BY_ID.values(), *SCALED, *rotated.TYPES)}


def dequantize(kind: BlockType, raw: Bytes) -> Floats:
    """The weights of whole blocks, `raw` [blocks * block_bytes], as float32 [blocks * block_size].

    Scales that are NaN or infinite give weights that are. Raises UnsupportedModel for a type that is not
    READABLE or SCALED.
    """
    if kind.dequantize is None:
        raise unreadable(kind)
    with np.errstate(invalid="ignore", over="ignore"):
        return kind.dequantize(raw.reshape(-1, kind.block_bytes)).reshape(-1)


def unreadable(kind: BlockType) -> UnsupportedModel:
    """The error for a type without dequantization; it names the readable one of the next size."""
    bits = {other.name: 8 * other.block_bytes / other.block_size for other in READABLE}
    wanted = 8 * kind.block_bytes / kind.block_size
    nearest = min(bits, key=lambda name: (abs(bits[name] - wanted), name))
    return UnsupportedModel(
        f"tensor type {kind.name} ({wanted:.3g} bits per weight) is not supported; the nearest that is: "
        f"{nearest} ({bits[nearest]:.3g} bits); all: {', '.join(bits)}"
    )
