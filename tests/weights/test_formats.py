"""Weight formats: NumPy's definition, native packing bit for bit, and products against both."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from packing import aligned

from headrace import _native
from headrace.weights import formats
from headrace.weights.formats import activations
from headrace.weights.formats.column_panels import Bytes, Floats
from headrace.weights.formats.hadamard import rotate, rotated_k, rotation_block
from headrace.weights.quant_types import BY_NAME, dequantize

SHAPES = [(1, 1), (31, 2), (33, 31), (100, 172), (64, 64), (33, 896), (7, 130)]


def weights(n: int, k: int, seed: int = 1) -> Floats:
    random = np.random.default_rng(seed)
    w = random.standard_normal((n, k)) * np.exp(random.standard_normal((1, k)))
    w[n // 2] *= 1e-4
    return w.astype(np.float32)


def native_pack(format: str, w: npt.NDArray[np.generic], source_type: str = "F32", threads: int = 2) -> Bytes:
    n, k = w.shape
    packed = aligned(_native.packed_nbytes(format, n, k))
    source = np.ascontiguousarray(w).view(np.uint8).reshape(-1)
    _native.pack(_native.Pool(threads), format, source, source_type, n, k, 0, -(-n // 32), packed)
    return packed


def product(format: str, x: Floats, packed: Bytes, n: int, k: int, threads: int = 1) -> Floats:
    return _native.linear(_native.Pool(threads), x, [(format, n, k, packed)], [None])[0]


@pytest.mark.parametrize("format", formats.FORMATS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_native_packs_the_same_bytes(format: str, n: int, k: int) -> None:
    w = weights(n, k)
    assert _native.packed_nbytes(format, n, k) == formats.packed_nbytes(format, n, k)
    assert np.array_equal(native_pack(format, w), formats.pack(format, w))


@pytest.mark.parametrize("format", formats.FORMATS)
def test_packing_by_strips_and_from_half_precision(format: str) -> None:
    w = weights(100, 172).astype(np.float16)
    expected = formats.pack(format, w.astype(np.float32))
    assert np.array_equal(native_pack(format, w, "F16"), expected)
    packed = aligned(len(expected))
    pool = _native.Pool(3)
    for strip0, strip1 in ((2, 4), (1, 2), (0, 1), (1, 1)):
        rows = np.ascontiguousarray(w[strip0 * 32 : strip1 * 32]).view(np.uint8).reshape(-1)
        _native.pack(pool, format, rows, "F16", 100, 172, strip0, strip1, packed)
    assert np.array_equal(packed, expected)
    bits = weights(33, 31).view(np.uint32) >> np.uint32(16)
    exact = (bits << np.uint32(16)).view(np.float32)
    assert np.array_equal(native_pack(format, bits.astype(np.uint16), "BF16"), formats.pack(format, exact))


@pytest.mark.parametrize("format", formats.FORMATS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_unpacked_weights(format: str, n: int, k: int) -> None:
    w = weights(n, k)
    packed = formats.pack(format, w)
    back = formats.unpack(format, packed, n, k)
    rows = np.arange(n, dtype=np.int32)[::-1].copy()
    assert np.array_equal(_native.unpack_rows(format, packed, n, k, rows), back[rows])
    # f16 has 11 bits, bf16 8; int8 a 1/254 of the largest of a rotated row; int4 4.5 bits
    bound = {"f32": 0.0, "f16": 1e-3, "bf16": 5e-3, "int8": 0.02, "int4": 0.13}[format]
    assert np.sqrt(np.square(back - w).sum() / np.square(w).sum()) <= bound


@pytest.mark.parametrize("format", ["int4", "int8"])
@pytest.mark.parametrize(("n", "k"), [(32, 128), (70, 96), (7, 192), (64, 1216)])
def test_rows_of_a_packed_weight(format: str, n: int, k: int) -> None:
    """They are blocks of a type that means the same weights, and become the same packed weight."""
    packed = formats.pack(format, weights(n, k))
    rows = formats.to_rows(format, packed, n, k)
    kind = BY_NAME[f"R{format[-1]}_{rotation_block(k)}"]
    assert rows.shape == (n, kind.row_bytes(k))
    unpacked = formats.unpack(format, packed, n, k)
    assert np.array_equal(dequantize(kind, rows.reshape(-1)).reshape(n, k), unpacked)
    again = formats.from_rows(format, rows, k)
    assert np.array_equal(formats.unpack(format, again, n, k), unpacked)
    assert n % 32 or np.array_equal(again, packed)


@pytest.mark.parametrize("format", formats.FORMATS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 13, 40])
def test_products(format: str, n: int, k: int, rows: int) -> None:
    packed = native_pack(format, weights(n, k))
    x = np.random.default_rng(rows).standard_normal((rows, k)).astype(np.float32)
    y = product(format, x, packed, n, k)
    back = formats.unpack(format, packed, n, k)
    # With a handful of inputs and outputs there is nothing to average over.
    slack = 1 if k >= 64 and n * rows >= 64 else 4
    assert formats.product_error(x, back, y) <= slack * formats.tolerance(format)
    if format in ("int8", "int4"):
        assert np.array_equal(y, activations.integer_product(format, x, packed, n, k))
    else:
        rounded = activations.rounded_inputs(format, x)
        assert formats.product_error(rounded, back, y) <= 2e-6


@pytest.mark.parametrize("format", formats.FORMATS)
def test_a_row_does_not_depend_on_its_company(format: str) -> None:
    packed = native_pack(format, weights(100, 172))
    x = np.random.default_rng(5).standard_normal((70, 172)).astype(np.float32)
    together = product(format, x, packed, 100, 172, threads=3)
    for row in (0, 11, 12, 69):
        assert np.array_equal(product(format, x[row : row + 1], packed, 100, 172)[0], together[row])


def test_everything_fused() -> None:
    n, k = 70, 96
    random = np.random.default_rng(7)
    x, residual = (
        random.standard_normal((5, k)).astype(np.float32),
        random.standard_normal((5, n)).astype(np.float32),
    )
    norm, bias = random.standard_normal(k).astype(np.float32), random.standard_normal(n).astype(np.float32)
    gate, up = weights(n, k, 2) * np.float32(0.05), weights(n, k, 3) * np.float32(0.05)
    packed = [(f, n, k, native_pack(f, w)) for f, w in (("f32", gate), ("f16", up))]
    up = formats.unpack("f16", packed[1][3], n, k)
    normed = x / np.sqrt(np.square(x).mean(1, keepdims=True) + 1e-5) * norm
    pool = _native.Pool(2)
    y = _native.linear(pool, x, packed, [bias, None], norm=norm, eps=1e-5, residual=residual)
    assert np.allclose(y[0], normed @ gate.T + bias + residual, rtol=1e-5, atol=1e-4)
    assert np.allclose(y[1], normed @ up.T, rtol=1e-5, atol=1e-4)
    (gated,) = _native.linear(pool, x, packed, [None, bias], act=1, norm=norm, eps=1e-5)
    g = (normed @ gate.T).astype(np.float64)
    assert np.allclose(gated, g / (1 + np.exp(-g)) * (normed @ up.T + bias), rtol=1e-5, atol=2e-4)


def test_activations() -> None:
    """The gates' curves, by way of an identity weight."""
    one = native_pack("f32", np.ones((1, 1), np.float32))
    x = np.concatenate([np.linspace(-30, 30, 6001), [-200.0, 200.0, -0.0]]).astype(np.float32)[:, None]
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    erf = np.vectorize(math.erf)
    expected = {
        1: wide / (1 + np.exp(-wide)),
        2: wide * 0.5 * (1 + erf(wide / np.sqrt(2))),
        3: wide * 0.5 * (1 + np.tanh(inner)),
    }
    for act, curve in expected.items():
        y = _native.linear(_native.Pool(1), x, [("f32", 1, 1, one)] * 2, [None, None], act=act)[0]
        # gate and up are both x, so y / x is the curve
        assert np.allclose(y, curve * wide, rtol=2e-6, atol=3e-6), act


@pytest.mark.parametrize("format", formats.FORMATS)
def test_rows_without_numbers(format: str) -> None:
    packed = native_pack(format, weights(40, 64))
    x = np.ones((3, 64), np.float32)
    x[1, 5] = np.nan
    x[2] = 0
    y = product(format, x, packed, 40, 64)
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all() and (y[2] == 0).all()


def test_rotation_is_its_own_inverse() -> None:
    assert [rotation_block(k) for k in (1, 64, 172, 896, 4864)] == [32, 64, 64, 128, 128]
    assert [rotated_k(k) for k in (1, 32, 172)] == [32, 32, 192]
    x = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    assert np.allclose(rotate(rotate(x, 128), 128), x, atol=1e-6)


def q4_0(w: Floats) -> Floats:
    """llama.cpp's Q4_0, to compare with: 32 weights share an f16 scale, largest magnitude at code -8."""
    groups = w.reshape(-1, 32)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
    scale = extreme / -8
    codes = np.clip(np.floor(groups / scale + 8.5), 0, 15) - 8
    return (codes * scale.astype(np.float16).astype(np.float32)).reshape(w.shape)


@pytest.mark.parametrize("tail", ["normal", "t4"])
def test_int4_beats_q4_0(tail: str) -> None:
    random = np.random.default_rng(11)
    w = random.standard_normal((64, 1024)) if tail == "normal" else random.standard_t(4, (64, 1024))
    w = w.astype(np.float32)

    def error(back: Floats) -> float:
        return float(np.sqrt(np.square(back - w).sum() / np.square(w).sum()))

    ours = error(formats.unpack("int4", formats.pack("int4", w), 64, 1024))
    assert ours < 0.075
    assert ours < 0.9 * error(q4_0(w))


@pytest.mark.parametrize("format", formats.FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_without_numbers_are_refused(format: str, value: float) -> None:
    w = weights(70, 40)
    w[65, 39] = value
    with pytest.raises(ValueError, match="row 65"):
        native_pack(format, w)
    with pytest.raises(ValueError, match="row 65"):
        formats.pack(format, w)


def test_values_beyond_the_format_are_refused() -> None:
    w = weights(3, 8)
    w[1, 1] = 65520.0
    for pack in (native_pack, formats.pack):
        with pytest.raises(ValueError):
            pack("f16", w)


def test_refusals() -> None:
    packed, pool = native_pack("f32", weights(33, 8)), _native.Pool(1)
    x, source = np.ones((2, 8), np.float32), np.zeros(33 * 8 * 4, np.uint8)
    for bad in [
        ("f33", 33, 8, packed),
        ("f32", 33, 9, packed),
        ("f16", 33, 8, packed),
        ("f32", 0, 8, packed),
    ]:
        with pytest.raises(ValueError):
            _native.linear(pool, x, [bad], [None])
    good = ("f32", 33, 8, packed)
    with pytest.raises(ValueError):
        _native.linear(pool, x, [good], [None], act=1)
    with pytest.raises(ValueError):
        _native.linear(pool, x, [good], [np.ones(32, np.float32)])
    with pytest.raises(ValueError):
        _native.linear(pool, np.ones((2, 9), np.float32), [good], [None])
    with pytest.raises(ValueError):
        _native.unpack_rows("f32", packed, 33, 8, np.array([33], np.int32))
    with pytest.raises(ValueError):
        _native.pack(pool, "f32", source[:-1], "F32", 33, 8, 0, 2, packed)
    with pytest.raises(ValueError):
        _native.pack(pool, "f32", source, "F32", 33, 8, 0, 3, packed)
    with pytest.raises(ValueError):
        _native.pack(pool, "f32", source, "F64", 33, 8, 0, 2, packed)
    for k in (0, 131073):
        with pytest.raises(ValueError):
            _native.packed_nbytes("int4", 32, k)
        with pytest.raises(ValueError):
            formats.packed_nbytes("int4", 32, k)
    for n, k in ((1 << 40, 2), (-1, 8), (1 << 62, 1 << 62)):
        with pytest.raises((ValueError, TypeError)):
            _native.packed_nbytes("f32", n, k)
        with pytest.raises(ValueError):
            formats.packed_nbytes("f32", n, k)
    with pytest.raises(ValueError):
        formats.packed_nbytes("int5", 32, 32)
    with pytest.raises(ValueError):
        formats.unpack("f32", packed, 33, 9)
