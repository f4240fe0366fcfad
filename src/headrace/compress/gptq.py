"""GPTQ: rounds a matrix column by column and spreads each column's error over those that follow.

Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
section 3; columns in their given order, so that groups stay those of the format.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.compress.grids import Fitted, Grid
from headrace.errors import CorruptFile
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.tensor_output import finite

Moments = NDArray[np.float64]
DAMPING = 0.01
"""Of the mean of the Hessian's diagonal, added to it."""
_MAX_DAMPING = 1.0
_LEAST_IMPORTANCE = 1e-12
_SMALL = 64
_LAZY = 256
"""Columns whose errors reach the later ones together: one product instead of many updates."""


class Rounded(Struct, frozen=True, eq=False):
    """A matrix in its format: `data` are the rows' bytes, `values` what they stand for [n, k]. `loss` is the
    squared error of its products over the calibration text, as a share of the products' own squares."""

    data: Bytes
    values: Floats
    loss: float


def gptq(weight: Floats, hessian: Moments, grid: Grid, *, name: str) -> Rounded:
    """Round `weight` [n, k] to `grid`, for inputs whose second moments are `hessian` [k, k] (X^T X, float64).

    Inputs that were always 0 keep their plain rounding. CorruptFile where weights or inputs are no finite
    numbers.
    """
    check_finite(weight, hessian, name=name)
    factor = inverse_factor(hessian)
    diagonal = np.diag(hessian)
    importance = np.maximum(diagonal / (diagonal.max() or 1.0), _LEAST_IMPORTANCE).astype(np.float32)
    rest = weight.astype(np.float32).copy()
    blocks: list[tuple[Fitted, Floats]] = []
    values = np.empty_like(rest)
    for start in range(0, rest.shape[1], grid.block):
        end = start + grid.block
        fitted = grid.fit(rest[:, start:end].copy(), importance[start:end])
        codes = np.empty((len(rest), grid.block), np.float32)
        for low in range(start, end, _LAZY):
            high = min(low + _LAZY, end)
            inner, columns = factor[low:high, low:high], rest[:, low:high].copy()
            errors = np.empty_like(columns)
            for j in range(high - low):
                place = low + j - start
                codes[:, place] = fitted.codes(place, columns[:, j])
                values[:, low + j] = fitted.values(place, codes[:, place])
                errors[:, j] = (columns[:, j] - values[:, low + j]) / inner[j, j]
                columns[:, j + 1 :] -= np.outer(errors[:, j], inner[j, j + 1 :])
            rest[:, high:] -= errors @ factor[low:high, high:]
        blocks.append((fitted, codes))
    return Rounded(grid.pack(blocks), values, product_loss(weight, values, hessian))


def check_finite(weight: Floats, hessian: Moments, *, name: str) -> None:
    """CorruptFile where weights or inputs are no finite numbers."""
    finite(weight, name)
    if not np.isfinite(hessian).all():
        raise CorruptFile(
            f"the inputs of {name} overflow on the calibration text: take another text, or --method rtn"
        )


def weighted(weight: Floats, importance: Floats, grid: Grid, *, name: str) -> Rounded:
    """Round each block by itself, squared errors weighed by `importance` [k] (mean squares of the inputs)."""
    finite(weight, name)
    if importance.shape != weight.shape[1:]:
        raise CorruptFile(
            f"the importance matrix has {importance.shape} inputs for {name}, which has {weight.shape[1:]}:"
            " it is of another model"
        )
    scaled = np.maximum(importance / (importance.max() or 1.0), _LEAST_IMPORTANCE).astype(np.float32)
    blocks: list[tuple[Fitted, Floats]] = []
    for start in range(0, weight.shape[1], grid.block):
        columns = np.ascontiguousarray(weight[:, start : start + grid.block], np.float32)
        fitted = grid.fit(columns, scaled[start : start + grid.block])
        codes = np.stack([fitted.codes(j, columns[:, j]) for j in range(grid.block)], axis=1)
        blocks.append((fitted, codes))
    data = grid.pack(blocks)
    values = grid.unpack(data)
    whole = float((np.square(weight) * scaled).sum()) or 1.0
    error = float((np.square(weight - values) * scaled).sum()) / whole
    return Rounded(data, values, error)


def inverse_factor(hessian: Moments) -> Floats:
    """The upper Cholesky factor of the damped Hessian's inverse; damping grows until there is one.

    With H = V V^T for an upper triangular V the inverse is (V^-1)^T V^-1, so V^-1 is the factor: a Cholesky
    factorization in reversed order and the inverse of a triangle, a quarter of the work of inverting H.
    """
    damped = hessian.copy()
    diagonal = np.diag(damped).copy()
    diagonal[diagonal == 0] = 1.0  # an input that was always 0 has no part in any other's error
    damping = DAMPING
    while True:
        np.fill_diagonal(damped, diagonal + damping * diagonal.mean())
        try:
            lower = cast("Moments", np.linalg.cholesky(damped[::-1, ::-1]))
            return _upper_inverse(np.ascontiguousarray(lower[::-1, ::-1])).astype(np.float32)
        except np.linalg.LinAlgError:
            damping *= 10
            if damping > _MAX_DAMPING:
                raise


def _upper_inverse(upper: Moments) -> Moments:
    """Of an upper triangular matrix, by halves: nearly all of it is products of matrices."""
    n = len(upper)
    if n <= _SMALL:
        return np.triu(cast("Moments", np.linalg.inv(upper)))
    half = n // 2
    inverse = np.zeros_like(upper)
    first, last = _upper_inverse(upper[:half, :half]), _upper_inverse(upper[half:, half:])
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[:half, half:] = -(first @ upper[:half, half:]) @ last
    return inverse


def product_loss(weight: Floats, values: Floats, hessian: Moments) -> float:
    """The squared error of a matrix' products, as a share of their own squares."""
    scale = float(np.abs(hessian).max()) or 1.0  # float32 holds no squares of large inputs
    moments = (hessian / scale).astype(np.float32)

    def squares(rows: Floats) -> float:
        return float(((rows @ moments) * rows).sum(dtype=np.float64))

    whole = squares(weight.astype(np.float32))
    return squares((weight - values).astype(np.float32)) / whole if whole else 0.0
