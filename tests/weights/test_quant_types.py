"""Dequantization against the `gguf` package, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import UnsupportedModel
from headrace.weights.quant_types import BY_ID, BY_NAME, READABLE, dequantize, float_scales, unreadable
from headrace.weights.quant_types.block_type import BlockType

BLOCKS = 512


def random_blocks(kind: BlockType) -> np.ndarray:
    """Every bit random: scales of every size, subnormal, infinite and NaN ones too."""
    count = BLOCKS if kind.block_size > 1 else BLOCKS * 32
    return np.random.default_rng(kind.id).integers(0, 256, count * kind.block_bytes, np.uint8)


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.name)
def test_bits_equal_those_of_gguf(kind: BlockType) -> None:
    gguf = pytest.importorskip("gguf", reason="the oracle is not here: pip install gguf")
    raw = random_blocks(kind)
    plain = {"F32": np.float32, "F16": np.float16}
    with np.errstate(all="ignore"):
        wanted = gguf.dequantize(raw.view(plain.get(kind.name, np.uint8))[None], kind.id).reshape(-1)
    found = dequantize(kind, raw)
    assert found.dtype == wanted.dtype == np.float32
    assert found.size == raw.size // kind.block_bytes * kind.block_size
    equal = found.view(np.uint32) == wanted.view(np.uint32)
    assert (equal | (np.isnan(found) & np.isnan(wanted))).all()
    assert np.isfinite(found).mean() > 0.8


def test_the_table_is_that_of_gguf() -> None:
    gguf = pytest.importorskip("gguf", reason="the oracle is not here: pip install gguf")
    sizes = {kind.id: (kind.name, kind.block_size, kind.block_bytes) for kind in BY_ID.values()}
    theirs = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: theirs[number] for number in sizes} == sizes


def one_block(kind: str, *fields: bytes) -> np.ndarray:
    raw = np.frombuffer(b"".join(fields), np.uint8)
    assert raw.size == BY_NAME[kind].block_bytes
    return dequantize(BY_NAME[kind], raw)


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def test_places_within_a_block() -> None:
    """Worked by hand from the layouts, so that the definition stands where the oracle is not installed."""
    nibbles = bytes([0x10 * (15 - i) + i for i in range(16)])
    up_and_down = [*range(16), *reversed(range(16))]
    assert one_block("Q4_0", half(2), nibbles).tolist() == [2 * (code - 8) for code in up_and_down]
    assert one_block("Q4_1", half(2), half(1), nibbles).tolist() == [2 * code + 1 for code in up_and_down]
    fifth = (1 << 3 | 1 << 20).to_bytes(4, "little")
    codes = [code + 16 * (place in (3, 20)) for place, code in enumerate(up_and_down)]
    assert one_block("Q5_0", half(1), fifth, nibbles).tolist() == [code - 16 for code in codes]
    assert one_block("Q5_1", half(1), half(0), fifth, nibbles).tolist() == codes
    signed = np.arange(-16, 16, dtype=np.int8)
    assert one_block("Q8_0", half(0.5), signed.tobytes()).tolist() == (signed / 2).tolist()
    assert one_block("MXFP4", bytes([129]), bytes([0x2F] * 16)).tolist() == [-24.0] * 16 + [4.0] * 16
    assert one_block("IQ4_NL", half(1), bytes([0xF0] * 16)).tolist() == [-127.0] * 16 + [113.0] * 16


def test_places_within_a_scaled_block() -> None:
    scale = np.float32(-2).tobytes()
    nibbles = bytes([0x10 * (15 - i) + i for i in range(16)])
    up_and_down = [*range(16), *reversed(range(16))]
    assert one_block("U4_G32", scale, bytes([9]), nibbles).tolist() == [-2 * (c - 9) for c in up_and_down]
    signed = np.arange(-16, 16, dtype=np.int8)
    assert one_block("S8_G32", scale, signed.tobytes()).tolist() == (signed * -2.0).tolist()
    eights = bytes([0, 1, 7, 8, 0x38, 0x3C, 0x7E, 0xFE] * 4)
    values = [0, 2**-9, 7 * 2**-9, 2**-6, 1, 1.5, 448, -448]
    assert one_block("E4M3_G32", scale, eights).tolist() == [-2 * value for value in values] * 4
    assert np.isnan(one_block("E4M3_G32", scale, bytes([0x7F, 0xFF] * 16))).all()
    assert one_block("E2M1_G16", scale, bytes([0xF1] * 8)).tolist() == [-1.0] * 8 + [12.0] * 8


def test_e4m3_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="the oracle is not here: pip install torch")
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(float_scales.E4M3, codes.float().numpy())


def test_scales_of_a_block_of_256() -> None:
    scales = bytes([1, 2, 3, 4, 0x41, 0x82, 0xC3, 4, 0x15, 0x26, 0x37, 0x48])
    found = one_block("Q4_K", half(1), half(1), scales, bytes([0x21] * 128)).reshape(8, 32)
    # The upper bits of the last four minima lie in bytes 4 to 7, those of their scales in bytes 0 to 3.
    multipliers, minima = range(1, 9), [1, 2, 3, 4, 16 + 1, 32 + 2, 48 + 3, 4]
    wanted = [(1 + group % 2) * multipliers[group] - minima[group] for group in range(8)]
    assert (found == np.float32(wanted)[:, None]).all()


@pytest.mark.parametrize(("name", "nearest"), [("Q1_0", "IQ1_S"), ("NVFP4", "IQ4_NL"), ("I64", "F32")])
def test_other_types_name_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{name} .* the nearest that is: {nearest} "):
        raise unreadable(BY_NAME[name])
    with pytest.raises(UnsupportedModel):
        dequantize(BY_NAME[name], np.zeros(BY_NAME[name].block_bytes, np.uint8))
