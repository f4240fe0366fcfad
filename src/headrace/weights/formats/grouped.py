"""Grouped formats: block types packed without loss, by groups of 32 inputs (native/formats/grouped.hpp).

What they weigh is defined by block_types, and only a block type's own rows can be packed; the layout is
native code's alone. Products round their inputs to int8 with one scale for 32 of them, FP8's not at all.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.formats.column_panels import Floats, round_up
from headrace.weights.formats.hadamard import GROUP
from headrace.weights.formats.int8 import TINY
from headrace.weights.quant_types import READABLE, SCALED, WITHOUT_KERNEL

# By the name of the format, that of the type in small letters.
TYPES = {
    kind.name.lower(): kind
    for kind in (*READABLE, *SCALED)
    if kind.block_size > 1 and kind.name not in WITHOUT_KERNEL
}
FLOATS = "e4m3_g32"  # multiplied in float32


def tolerance(format: str) -> float:
    """Largest `product_error` that rounding the inputs and summing in float32 may cause."""
    return 2e-6 if format == FLOATS else 2e-2


def rounded_inputs(x: Floats) -> Floats:
    """x [T, k] as grouped weights see it: 32 inputs at a time largest magnitude / 127 times an int8."""
    padded = np.zeros((len(x), round_up(x.shape[1], GROUP)), np.float32)
    padded[:, : x.shape[1]] = x
    groups = padded.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    safe = np.where(largest >= TINY, largest, np.float32(1))
    q = np.rint(groups * (np.float32(127) / safe)) * (largest >= TINY)
    rounded = (q * (safe / np.float32(127))).astype(np.float32)
    return rounded.reshape(padded.shape)[:, : x.shape[1]]
