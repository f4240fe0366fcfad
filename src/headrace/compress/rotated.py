"""GPTQ into the rotated int4 of the loader: weights and second moments are rotated, then gptq rounds them.

A number of a row is scale * (multiplier * code + offset). The scale is fixed by the row's largest number
before the first column; multiplier and offset of 32 columns are searched when their turn comes, on what is
left of them; at last the scale is the one for which the row's products err least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec import Struct

from headrace.compress.gptq import Moments, Rounded, check_finite, gptq, product_loss
from headrace.compress.grids import Fitted
from headrace.weights.formats.hadamard import rotation_block
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.quant_types.rotated import GROUP, GROUP_BYTES, rotate
from headrace.weights.safetensors.rotated_rows import RotatedRows

_TOP, _LOWEST, _HIGHEST, _MOST_MULTIPLIER = 15, -128, 127, 17
_PHASES = (-7.875, -7.625, -7.375, -7.125)
_FEWER = range(4)  # less than the multiplier that covers the range
_TINY = np.float32(1e-30)


def gptq_rotated(weight: Floats, hessian: Moments, *, name: str) -> Rounded:
    """As gptq, for `weight` [n, k] with k a multiple of 32."""
    check_finite(weight, hessian, name=name)
    k = weight.shape[1]
    block = rotation_block(k)
    rotated = rotate(weight.astype(np.float32), block)
    moments = _rotated_moments(hessian, block)
    largest = np.abs(rotated).max(axis=1, keepdims=True)
    scale = np.where(largest < _TINY, np.float32(0), largest / np.float32(_HIGHEST))
    rounded = gptq(rotated, moments, _IntegerGrid(scale, k), name=name)
    integers = rounded.values / np.where(scale == 0, np.float32(1), scale)
    data = _with_scale(rounded.data, _best_scale(rotated, np.rint(integers), moments, scale), block)
    values = RotatedRows("int4", k).decode(data)
    return Rounded(data, values, product_loss(weight, values, hessian))


def _rotated_moments(hessian: Moments, block: int) -> Moments:
    """Those of rotated inputs, in float64."""
    matrix = rotate(np.eye(block, dtype=np.float32), block).astype(np.float64)
    blocks = hessian.reshape(-1, block) @ matrix
    turned = np.ascontiguousarray(blocks.reshape(hessian.shape).T).reshape(-1, block) @ matrix
    return turned.reshape(hessian.shape)


class _IntegerGrid(Struct, frozen=True, eq=False):
    """Groups of 32 of `k` columns of rows with given scales [n, 1]."""

    scale: Floats
    k: int
    block: int = GROUP

    def fit(self, columns: Floats, importance: Floats) -> Fitted:
        """The multiplier and the offset of least squared error of some."""
        safe: Floats = np.where(self.scale == 0, np.float32(1), self.scale)
        steps: Floats = np.divide(columns, safe, dtype=np.float32)
        multiplier, offset = _search(steps, importance / importance.max())
        scale = np.repeat(self.scale * multiplier, GROUP, axis=1)
        return Fitted(
            scale, np.repeat(self.scale * offset, GROUP, axis=1), 0, _TOP, _bytes_of(multiplier, offset)
        )

    def pack(self, blocks: Sequence[tuple[Fitted, Floats]]) -> Bytes:
        """Of each 32 columns multiplier, offset and nibbles; the scale is not known yet."""
        parts: list[Bytes] = []
        for fitted, codes in blocks:
            low, high = np.split(codes.astype(np.uint8), 2, axis=1)
            parts += [cast("Bytes", fitted.stored), low | high << np.uint8(4)]
        return np.concatenate(parts, axis=1)

    def unpack(self, data: Bytes) -> Floats:
        """The rotated numbers."""
        block = rotation_block(self.k)
        return rotate(RotatedRows("int4", self.k).decode(_with_scale(data, self.scale, block)), block)


def _search(steps: Floats, importance: Floats) -> tuple[Floats, Floats]:
    """For numbers [n, 32] in units of their rows' scales: [n, 1] each."""
    low, high = steps.min(axis=1, keepdims=True), steps.max(axis=1, keepdims=True)
    covering = np.minimum(np.rint((high - low) / np.float32(_TOP) + np.float32(0.49)), _MOST_MULTIPLIER)
    weights = importance[None] / importance.sum()
    best = np.full_like(low, np.inf), np.ones_like(low), np.zeros_like(low)
    for fewer in _FEWER:
        multiplier = np.maximum(covering - np.float32(fewer), np.float32(1)).astype(np.float32)
        for phase in _PHASES:
            offset = np.rint((low + high) * np.float32(0.5) + multiplier * np.float32(phase))
            best = _better(steps, weights, multiplier, offset, best)[0]
    for _ in range(2):  # towards the mean of what is left
        _, missed = _better(steps, weights, best[1], best[2], best)
        best = _better(steps, weights, best[1], np.rint(best[2] + missed), best)[0]
    return best[1], best[2]


def _better(
    steps: Floats, weights: Floats, multiplier: Floats, offset: Floats, best: tuple[Floats, Floats, Floats]
) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """The better of `best` (error, multiplier, offset) and this pair; the pair's mean error."""
    offset = np.clip(offset, np.float32(_LOWEST), np.float32(_HIGHEST) - _TOP * multiplier)
    codes = np.clip(np.rint((steps - offset) / multiplier), np.float32(0), np.float32(_TOP))
    miss = steps - (multiplier * codes + offset)
    error = (miss * miss * weights).sum(axis=1, keepdims=True)
    better = error < best[0]
    new = (error, multiplier, offset)
    chosen = cast(
        "tuple[Floats, Floats, Floats]",
        tuple(np.where(better, a, b) for a, b in zip(new, best, strict=True)),
    )
    return chosen, (miss * weights).sum(axis=1, keepdims=True)


def _best_scale(rotated: Floats, integers: Floats, moments: Moments, scale: Floats) -> Floats:
    """The scales [n, 1] of least squared error of the products; as they are where products say nothing."""
    products = integers.astype(np.float64) @ moments
    above = (products * rotated).sum(axis=1, keepdims=True)
    below = (products * integers).sum(axis=1, keepdims=True)
    fitted = (above / np.where(below > 0, below, 1.0)).astype(np.float32)
    return np.where((below > 0) & (scale > 0) & (fitted > 0) & np.isfinite(fitted), fitted, scale)


def _bytes_of(multiplier: Floats, offset: Floats) -> Bytes:
    return np.concatenate([multiplier, offset - np.float32(_LOWEST)], axis=1).astype(np.uint8)


def _with_scale(groups: Bytes, scale: Floats, block: int) -> Bytes:
    """Rows of groups with the scale before each block."""
    width = block // GROUP * GROUP_BYTES
    blocks = groups.reshape(len(groups), -1, width)
    scales = np.ascontiguousarray(scale, "<f4").view(np.uint8)[:, None]
    return np.concatenate([np.broadcast_to(scales, (*blocks.shape[:2], 4)), blocks], axis=2).reshape(
        len(groups), -1
    )
