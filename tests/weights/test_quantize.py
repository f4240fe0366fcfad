"""Floats to blocks: `gguf` reads the same numbers, with no larger error than its own quantizers make."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quantize import QUANTIZERS, quantize, symmetric_bf16

gguf = pytest.importorskip("gguf", reason="the truth is what the package gguf reads and writes")
RNG = np.random.default_rng(5)
SHAPE = (24, 512)


def cases() -> dict[str, np.ndarray]:
    normal = RNG.standard_normal(SHAPE)
    holes = normal.copy()
    holes[:, ::3] = 0
    holes[:4], holes[5], holes[6], holes[7, 0] = 0, 1e-12, 3.0, 1e4
    data = {
        "normal": 0.02 * normal,
        "heavy tails": 0.02 * RNG.standard_t(3, SHAPE),
        "one sign": np.abs(normal),
        "far from zero": 5 + 0.1 * normal,
        "negative": -2 + 0.5 * normal,
        "holes": holes,
    }
    return {name: values.astype(np.float32) for name, values in data.items()}


CASES = cases()


def error(values: np.ndarray, original: np.ndarray) -> float:
    return float(np.square((values - original).astype(np.float64)).sum())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_gguf_reads_what_we_read(kind: str, name: str) -> None:
    blocks = quantize(kind, CASES[name])
    ours = dequantize(BY_NAME[kind], blocks.reshape(-1)).reshape(SHAPE)
    theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]).reshape(SHAPE)
    assert (ours == theirs).all()
    assert np.isfinite(ours).all()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_no_larger_error_than_gguf_makes(kind: str, name: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(CASES[name], number), number).reshape(SHAPE)
    ours = dequantize(BY_NAME[kind], quantize(kind, CASES[name]).reshape(-1)).reshape(SHAPE)
    assert error(ours, CASES[name]) <= error(theirs, CASES[name]) * (1 + 1e-6)


def plain_range(values: np.ndarray, top: int) -> np.ndarray:
    """Q4_K and Q5_K without any search: scale and minimum of each group by its extremes, then in 6 bits."""
    groups = values.reshape(-1, 8, 32)
    low = -np.minimum(groups.min(axis=2), 0)
    scale = (groups.max(axis=2) + low) / top
    unit, low_unit = (
        np.float16(part.max(axis=1, keepdims=True) / 63).astype(np.float32) for part in (scale, low)
    )
    scale = np.rint(scale / np.maximum(unit, 1e-20)).clip(0, 63) * unit
    low = np.rint(low / np.maximum(low_unit, 1e-20)).clip(0, 63) * low_unit
    codes = np.rint((groups + low[..., None]) / np.maximum(scale, 1e-20)[..., None]).clip(0, top)
    return (codes * scale[..., None] - low[..., None]).reshape(values.shape)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("kind", "top"), [("Q4_K", 15), ("Q5_K", 31)])
def test_no_larger_error_than_a_plain_range(kind: str, top: int, name: str) -> None:
    ours = dequantize(BY_NAME[kind], quantize(kind, CASES[name]).reshape(-1)).reshape(SHAPE)
    assert error(ours, CASES[name]) <= error(plain_range(CASES[name], top), CASES[name])


def test_more_bits_lose_less() -> None:
    order = ["Q4_0", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "BF16", "F16", "F32"]
    losses = [
        error(
            dequantize(BY_NAME[kind], quantize(kind, CASES["normal"]).reshape(-1)).reshape(SHAPE),
            CASES["normal"],
        )
        for kind in order
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == 0


def test_what_half_floats_cannot_hold_becomes_their_largest() -> None:
    huge = np.full((1, 256), 1e30, np.float32)
    for kind in QUANTIZERS:
        assert np.isfinite(dequantize(BY_NAME[kind], quantize(kind, huge).reshape(-1))).all(), kind


@pytest.mark.parametrize(("low", "high"), [(-8, 7), (-127, 127)])
def test_scales_in_bf16(low: int, high: int) -> None:
    values = CASES["normal"].reshape(-1, 128)
    stored, scale, codes = symmetric_bf16(values, low, high)
    assert (dequantize(BY_NAME["BF16"], stored.reshape(-1)) == scale[:, 0]).all()
    assert codes.min() >= low and codes.max() <= high
    assert error(scale * codes, values) <= error(np.zeros_like(values), values) * (
        0.02 if high == 7 else 1e-4
    )
