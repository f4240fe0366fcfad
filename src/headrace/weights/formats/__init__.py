"""Weight formats: one file each with its layout, pack and unpack in NumPy, and what its products may err."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from headrace.weights.formats import bf16, f16, f32, grouped, int4, int8
from headrace.weights.formats.column_panels import Bytes, Floats

_MODULES: dict[str, ModuleType] = {"f32": f32, "f16": f16, "bf16": bf16, "int8": int8, "int4": int4}

# What any weights can be packed into, and the block types that are kept as they are.
FORMATS: tuple[str, ...] = tuple(_MODULES)
GROUPED: tuple[str, ...] = tuple(grouped.TYPES)


def _module(format: str) -> ModuleType:
    if format not in _MODULES:
        raise ValueError(f"unknown weight format {format!r}: use one of {', '.join(FORMATS)}")
    return _MODULES[format]


def packed_nbytes(format: str, n: int, k: int) -> int:
    """Bytes of a packed weight of `n` outputs and `k` inputs; ValueError where they do not fit the format."""
    return int(_module(format).packed_nbytes(n, k))


def pack(format: str, w: Floats) -> Bytes:
    """Pack float32 [n, k] into uint8 [packed_nbytes]. ValueError for NaN, infinities and values too large."""
    if not np.isfinite(w).all():
        row = int(np.flatnonzero(~np.isfinite(w).all(axis=1))[0])
        raise ValueError(f"row {row} of the weight holds a NaN or an infinity")
    packed: Bytes = _module(format).pack(np.ascontiguousarray(w, np.float32))
    if packed.nbytes != packed_nbytes(format, *w.shape):
        raise AssertionError(f"{format} packed {packed.nbytes} bytes")
    return packed


def to_rows(format: str, packed: Bytes, n: int, k: int) -> Bytes:
    """A packed int4 or int8 weight as rows [n, bytes] of a rotated block type (quant_types/rotated.py)."""
    rows: Bytes = _module(format).to_rows(packed, n, k)
    return rows


def from_rows(format: str, rows: Bytes, k: int) -> Bytes:
    """The packed weight of such rows."""
    packed: Bytes = _module(format).from_rows(rows, k)
    return packed


def unpack(format: str, packed: Bytes, n: int, k: int) -> Floats:
    """Weights as float32 [n, k], un-rotated: `x @ unpack(...).T` is the definition of the product."""
    if packed.nbytes != packed_nbytes(format, n, k):
        raise ValueError(
            f"a {format} weight [{n}, {k}] has {packed_nbytes(format, n, k)} bytes, not {packed.nbytes}"
        )
    weights: Floats = _module(format).unpack(packed, n, k)
    return weights


def tolerance(format: str) -> float:
    """Largest `product_error` that rounding the inputs and summing in float32 may cause."""
    return grouped.tolerance(format) if format in GROUPED else float(_module(format).TOLERANCE)


def product_error(x: Floats, w: Floats, y: Floats) -> float:
    """Root-mean-square error of y [T, n] as the product of x [T, k] and w [n, k].

    Relative to what a product of vectors of these lengths in random directions has, so that neither the
    number of inputs nor a chance cancellation matters.
    """
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    error = np.square(y - wide_x @ wide_w.T).mean()
    expected = np.square(wide_x).sum(axis=1).mean() * np.square(wide_w).sum(axis=1).mean() / x.shape[1]
    return float(np.sqrt(error / expected)) if expected > 0 else float(np.sqrt(error))
