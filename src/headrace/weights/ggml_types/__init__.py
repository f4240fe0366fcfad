"""The tensor types of ggml, one file per family: block layout and dequantisation to float32, in NumPy."""

from __future__ import annotations

import numpy as np

from headrace.errors import UnsupportedModel
from headrace.weights.ggml_types import iq4, k_quants, legacy, mxfp4, plain
from headrace.weights.ggml_types.blocks import Bytes, Floats, GgmlType

# Known by their size only, so that a file which holds one can be checked and the type be named.
_UNREADABLE = (
    GgmlType("Q8_1", 9, 32, 40),
    GgmlType("Q8_K", 15, 256, 292),
    GgmlType("IQ2_XXS", 16, 256, 66),
    GgmlType("IQ2_XS", 17, 256, 74),
    GgmlType("IQ3_XXS", 18, 256, 98),
    GgmlType("IQ1_S", 19, 256, 50),
    GgmlType("IQ3_S", 21, 256, 110),
    GgmlType("IQ2_S", 22, 256, 82),
    GgmlType("I8", 24, 1, 1),
    GgmlType("I16", 25, 1, 2),
    GgmlType("I32", 26, 1, 4),
    GgmlType("I64", 27, 1, 8),
    GgmlType("F64", 28, 1, 8),
    GgmlType("IQ1_M", 29, 256, 56),
    GgmlType("TQ1_0", 34, 256, 54),
    GgmlType("TQ2_0", 35, 256, 66),
    GgmlType("NVFP4", 40, 64, 36),
    GgmlType("Q1_0", 41, 128, 18),
)
READABLE = (*plain.TYPES, *legacy.TYPES, *k_quants.TYPES, *iq4.TYPES, *mxfp4.TYPES)
BY_ID = {kind.id: kind for kind in (*READABLE, *_UNREADABLE)}
BY_NAME = {kind.name: kind for kind in BY_ID.values()}


def dequantise(kind: GgmlType, raw: Bytes) -> Floats:
    """The weights of whole blocks, `raw` [blocks * block_bytes], as float32 [blocks * block_size].

    Scales that are NaN or infinite give weights that are. Raises UnsupportedModel for a type that is not
    READABLE.
    """
    if kind.dequantise is None:
        raise unreadable(kind)
    with np.errstate(invalid="ignore", over="ignore"):
        return kind.dequantise(raw.reshape(-1, kind.block_bytes)).reshape(-1)


def unreadable(kind: GgmlType) -> UnsupportedModel:
    """The error for a type without dequantisation; it names the readable one of the next size."""
    bits = {other.name: 8 * other.block_bytes / other.block_size for other in READABLE}
    wanted = 8 * kind.block_bytes / kind.block_size
    nearest = min(bits, key=lambda name: (abs(bits[name] - wanted), name))
    return UnsupportedModel(
        f"tensor type {kind.name} ({wanted:.3g} bits per weight) is not supported; the nearest that is: "
        f"{nearest} ({bits[nearest]:.3g} bits); all: {', '.join(bits)}"
    )
