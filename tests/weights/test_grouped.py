"""Block types kept as they are: packed without loss, multiplied, refused where they hold no numbers."""

from __future__ import annotations

import numpy as np
import pytest
from packing import aligned

from blocks import GGML, KINDS, random_bytes, random_rows
from headrace import _native
from headrace.weights import formats
from headrace.weights.formats import activations
from headrace.weights.formats.column_panels import Bytes, Floats
from headrace.weights.quant_types import BY_NAME, HQQ, READABLE, SCALED, WITHOUT_KERNEL, dequantize
from headrace.weights.quant_types.block_type import BlockType

pytestmark = pytest.mark.isas
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def pack(kind: BlockType, rows: Bytes, k: int, format: str | None = None, threads: int = 2) -> Bytes:
    format = format or kind.name.lower()
    packed = aligned(_native.packed_nbytes(format, len(rows), k))
    strips = 0, -(-len(rows) // 32)
    _native.pack(_native.Pool(threads), format, rows.reshape(-1), kind.name, len(rows), k, *strips, packed)
    return packed


def weights_of(kind: BlockType, rows: Bytes, k: int) -> Floats:
    return dequantize(kind, rows.reshape(-1)).reshape(len(rows), k)


def product(kind: BlockType, x: Floats, packed: Bytes, n: int, threads: int = 1) -> Floats:
    weight = (kind.name.lower(), n, x.shape[1], packed)
    return _native.linear(_native.Pool(threads), x, [weight], [None])[0]


def unpack(kind: BlockType, packed: Bytes, n: int, k: int) -> Floats:
    return _native.unpack_rows(kind.name.lower(), packed, n, k, np.arange(n, dtype=np.int32))


def test_every_type_has_a_format() -> None:
    assert [kind.name.lower() for kind in KINDS] == list(formats.GROUPED)
    others = {"F32", "F16", "BF16", *WITHOUT_KERNEL} - {HQQ}
    assert {kind.name for kind in READABLE} - {kind.name for kind in GGML} == others


@kinds
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (33, 3), (70, 10)])
def test_nothing_is_lost(kind: BlockType, n: int, blocks: int) -> None:
    k = blocks * kind.block_size
    rows = random_rows(kind, n, k)
    packed = pack(kind, rows, k)
    expected = weights_of(kind, rows, k)
    assert np.array_equal(unpack(kind, packed, n, k).view(np.uint32), expected.view(np.uint32))
    # In the same size class: scales of a K type are bytes instead of six bits, those of GPTQ float32.
    if kind in GGML and n == 70:
        assert packed.nbytes * 70 <= 96 * rows.nbytes * 1.15


@pytest.mark.parametrize("kind", GGML, ids=lambda kind: kind.name)
def test_unpacked_bits_equal_those_of_gguf(kind: BlockType) -> None:
    gguf = pytest.importorskip("gguf", reason="the oracle is not here: pip install gguf")
    rows = random_rows(kind, 33, 512)
    found = unpack(kind, pack(kind, rows, 512), 33, 512)
    assert np.array_equal(found.view(np.uint32), gguf.dequantize(rows, kind.id).view(np.uint32))


@kinds
@pytest.mark.parametrize(("n", "k"), [(1, 256), (33, 768), (100, 4352)])
def test_products(kind: BlockType, n: int, k: int) -> None:
    rows = random_rows(kind, n, k)
    packed, w, format = pack(kind, rows, k), weights_of(kind, rows, k), kind.name.lower()
    x = np.random.default_rng(n).standard_normal((70, k)).astype(np.float32)
    y = product(kind, x, packed, n, threads=2)
    assert formats.product_error(x, w, y) <= formats.tolerance(format)
    assert formats.product_error(activations.rounded_inputs(format, x), w, y) <= 2e-6
    for start, count in ((0, 1), (3, 2), (5, 7), (8, 12), (20, 13), (21, 49)):
        alone = product(kind, x[start : start + count], packed, n)
        assert np.array_equal(alone, y[start : start + count]), (start, count)


@kinds
def test_inputs_of_every_size(kind: BlockType) -> None:
    k = 5 * kind.block_size
    rows = random_rows(kind, 40, k)
    packed, w = pack(kind, rows, k), weights_of(kind, rows, k)
    x = np.random.default_rng(5).standard_normal((13, k)).astype(np.float32)
    y = product(kind, x, packed, 40)
    assert formats.product_error(x, w, y) <= formats.tolerance(kind.name.lower())


@kinds
def test_rows_without_numbers(kind: BlockType) -> None:
    packed = pack(kind, random_rows(kind, 40, 256), 256)
    x = np.ones((3, 256), np.float32)
    x[1, 5] = np.nan
    x[2] = 0
    y = product(kind, x, packed, 40)
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all() and (y[2] == 0).all()


@kinds
def test_any_bytes_are_packed_or_refused(kind: BlockType) -> None:
    """Packed exactly where every weight is a number, however large or small."""
    refused = 0
    x = np.random.default_rng(2).standard_normal((3, 256)).astype(np.float32)
    for seed in range(30):
        rows = random_bytes(kind, 3, 256, seed)
        w = weights_of(kind, rows, 256)
        if np.isfinite(w).all():
            packed = pack(kind, rows, 256)
            assert np.array_equal(unpack(kind, packed, 3, 256).view(np.uint32), w.view(np.uint32))
            product(kind, x, packed, 3)
        else:
            row = int(np.flatnonzero(~np.isfinite(w).all(axis=1))[0])
            with pytest.raises(ValueError, match=f"row {row} of the weight"):
                pack(kind, rows, 256)
            refused += 1
    assert refused < 30 or kind.name == "E4M3_G32"  # of random bytes one in 128 is its NaN


@kinds
@pytest.mark.parametrize("format", ["f32", "bf16", "int8"])
def test_packed_into_another_format(kind: BlockType, format: str) -> None:
    rows = random_rows(kind, 40, 256, size=0.1)
    found = pack(kind, rows, 256, format)
    assert np.array_equal(found, formats.pack(format, weights_of(kind, rows, 256)))


def test_refusals() -> None:
    kind = BY_NAME["Q4_K"]
    rows = random_rows(kind, 3, 512)
    for k in (0, 32, 300):
        with pytest.raises(ValueError):
            _native.packed_nbytes("q4_k", 3, k)
    packed = aligned(_native.packed_nbytes("q4_k", 3, 512))
    pool = _native.Pool(1)
    with pytest.raises(ValueError, match="only rows that are q4_k already can be packed so, these are F32"):
        _native.pack(pool, "q4_k", np.zeros(3 * 512 * 4, np.uint8), "F32", 3, 512, 0, 1, packed)
    with pytest.raises(ValueError, match="no whole blocks"):
        wide = aligned(_native.packed_nbytes("f32", 3, 300))
        _native.pack(pool, "f32", rows.reshape(-1), "Q4_K", 3, 300, 0, 1, wide)
    with pytest.raises(ValueError, match="source has"):
        _native.pack(pool, "q4_k", rows.reshape(-1)[:-1], "Q4_K", 3, 512, 0, 1, packed)
    for source in ("INT4", "q4_k", "IQ1_S"):
        with pytest.raises(ValueError, match="unknown source type"):
            _native.pack(pool, "q4_k", rows.reshape(-1), source, 3, 512, 0, 1, packed)
    assert all(kind.name.lower() not in formats.FORMATS for kind in SCALED)
