"""Packed weights: what a checkpoint becomes, and checkpoints that cannot be packed."""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from packing import SHAPES, WANTED
from safetensors.numpy import save_file

from blocks import KINDS
from headrace import _native
from headrace.errors import CorruptFile, ProgramError, UnsupportedModel, UsageError
from headrace.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.weights.formats import FORMATS
from headrace.weights.packing import packed_weights as packed
from headrace.weights.packing.packed_weights import WeightSpec, format_of, load_packed, predicted_bytes
from headrace.weights.quant_types.block_type import BlockType


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_give_what_one_call_gives(
    checkpoint: Checkpoint,
    pool: _native.Pool,
    tensors: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    format: str,
) -> None:
    monkeypatch.setattr(packed, "_BLOCK_BYTES", 32 * 96 * 4)  # one strip of "a" at a time
    wanted = [WeightSpec(name, n, k, format) for name, (n, k) in SHAPES.items()]
    steps: list[tuple[int, int]] = []
    found = load_packed(checkpoint, wanted, pool, cache=None, progress=lambda *step: steps.append(step))
    for name, tensor in tensors.items():
        n, k = SHAPES[name]
        expected = np.zeros(_native.packed_nbytes(format, n, k), np.uint8)
        dtype = {np.dtype("f4"): "F32", np.dtype("f2"): "F16"}[tensor.dtype]
        _native.pack(pool, format, tensor.reshape(-1).view(np.uint8), dtype, n, k, 0, -(-n // 32), expected)
        assert (found[name].format, found[name].n, found[name].k) == (format, n, k)
        np.testing.assert_array_equal(found[name].data, expected)
        assert found[name].data.ctypes.data % 64 == 0
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert len(steps) == 4 + 1 + 1 + 3 and steps[-1] == (total, total)
    assert all(before < after for (before, _), (after, _) in itertools.pairwise(steps))


def test_rows_come_back(checkpoint: Checkpoint, pool: _native.Pool, tensors: dict[str, np.ndarray]) -> None:
    weight = load_packed(checkpoint, WANTED, pool, cache=None)["embed"]
    rows = np.array([64, 0, 31, 33], np.int32)
    found = _native.unpack_rows(weight.format, weight.data, weight.n, weight.k, rows)
    np.testing.assert_array_equal(found, tensors["embed"][rows])


def test_tensor_that_shrinks_while_it_is_packed(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path
) -> None:
    os.truncate(checkpoint.folder / "model.safetensors", 3000)
    with pytest.raises(CorruptFile, match="cut short after it was opened"):
        load_packed(checkpoint, WANTED, pool, cache=cache)
    assert not cache.exists()


def test_bad_tensors_are_named(checkpoint: Checkpoint, pool: _native.Pool, tmp_path: Path) -> None:
    with pytest.raises(
        CorruptFile, match=r"'a' has the shape \[100, 96\], config\.json asks for \[96, 100\]"
    ):
        load_packed(checkpoint, [WeightSpec("a", 96, 100, "f32")], pool, cache=None)
    with pytest.raises(CorruptFile, match="no tensor 'z'"):
        load_packed(checkpoint, [WeightSpec("z", 96, 100, "f32")], pool, cache=None)
    with pytest.raises(UnsupportedModel, match="'ids' is stored as I32"):
        load_packed(checkpoint, [WeightSpec("ids", 2, 2, "f32")], pool, cache=None)
    with pytest.raises(ProgramError, match="wanted both"):
        load_packed(
            checkpoint, [WeightSpec("a", 100, 96, "f32"), WeightSpec("a", 100, 96, "f16")], pool, cache=None
        )
    with pytest.raises(UnsupportedModel, match=r"'x'.*bf16"):
        predicted_bytes([WeightSpec("x", 32, 2**30, "int4")])


@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
def test_values_that_are_not_finite(tmp_path: Path, pool: _native.Pool, format: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    weight = np.zeros((64, 32), np.float32)
    weight[40, 3] = np.nan
    save_file({"w": weight}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(CorruptFile, match="tensor 'w': row"):
        load_packed(checkpoint, [WeightSpec("w", 64, 32, format)], pool, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_same_weight_asked_twice_is_packed_once(
    checkpoint: Checkpoint, pool: _native.Pool, packs: list[int]
) -> None:
    embedding = WeightSpec("embed", 65, 64, "bf16")
    assert set(load_packed(checkpoint, [embedding, embedding], pool, cache=None)) == {"embed"}
    assert len(packs) == 1


def test_nothing_wanted(checkpoint: Checkpoint, pool: _native.Pool, cache: Path) -> None:
    assert load_packed(checkpoint, [], pool, cache=cache) == {}
    assert predicted_bytes([]) == 0
    assert not cache.exists()


def test_predicted_bytes_is_what_is_taken(checkpoint: Checkpoint, pool: _native.Pool) -> None:
    found = load_packed(checkpoint, WANTED, pool, cache=None)
    (base,) = {id(weight.data.base): weight.data.base for weight in found.values()}.values()
    assert base.nbytes == predicted_bytes(WANTED)
    payload = sum(weight.data.nbytes for weight in found.values())
    assert payload <= predicted_bytes(WANTED) < payload + 4096 * len(WANTED)


def test_format_of() -> None:
    assert [format_of("keep", dtype) for dtype in ("F32", "F16", "BF16")] == ["f32", "f16", "bf16"]
    assert format_of("int4", "BF16") == "int4"
    with pytest.raises(UsageError, match="no weight format 'int3': use keep, f32, f16, bf16, int8, int4"):
        format_of("int3", "F32")


# Start of the sha256 of one fixed weight's packed bytes. Where one changes, raise LAYOUT_VERSION with it:
# the caches on people's disks hold the old bytes.
LAYOUT = {
    "f32": "608c0b6d8b9e0c20",
    "f16": "694689bbb02bd11b",
    "bf16": "2bb1e9df3c50b004",
    "int8": "2ddb09a762f11c3a",
    "int4": "cd63e7d4ea9cffbe",
}


@pytest.mark.parametrize("format", FORMATS)
def test_layouts_change_only_with_the_version(pool: _native.Pool, format: str) -> None:
    n, k = 65, 200
    numbers = np.arange(n * k, dtype=np.uint64) * 2654435761 % 2**32
    weight = (numbers.astype(np.float64) / 2**32 - 0.5).astype(np.float32)
    found = np.zeros(_native.packed_nbytes(format, n, k), np.uint8)
    _native.pack(pool, format, weight.view(np.uint8), "F32", n, k, 0, 3, found)
    assert (packed.LAYOUT_VERSION, hashlib.sha256(found).hexdigest()[:16]) == (2, LAYOUT[format])


LAYOUT_OF_BLOCKS = {
    "q4_0": "b1b3b34c026152e2",
    "q4_1": "8b9391b9cd2c9228",
    "q5_0": "f7f2ba861d7b86d6",
    "q5_1": "839554eacf0579a9",
    "q8_0": "ce2fba488dbb26b4",
    "q2_k": "fa531680b6d05704",
    "q3_k": "cfd6a2824035f0d9",
    "q4_k": "f950108d5fff35f7",
    "q5_k": "7d81ffbe0cabc5f5",
    "q6_k": "8c41322689f4b283",
    "iq4_nl": "b1b3b34c026152e2",
    "iq4_xs": "a13e281dd6bc2c79",
    "mxfp4": "70bc77eb5001627a",
    "u4_g32": "a763214f23071f97",
    "s8_g32": "5f06434e3f78af0f",
    "e4m3_g32": "dfaf87ac599e8e42",
    "e2m1_g16": "f8c7440ff0a4968a",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_layouts_of_blocks_change_only_with_the_version(pool: _native.Pool, kind: BlockType) -> None:
    n, k, format = 65, 768, kind.name.lower()
    numbers = np.arange(n * kind.row_bytes(k), dtype=np.uint64) * 2654435761 % 2**32
    rows = (numbers >> 20).astype(np.uint8) & 0x2F
    found = np.zeros(_native.packed_nbytes(format, n, k), np.uint8)
    _native.pack(pool, format, rows, kind.name, n, k, 0, 3, found)
    digest = hashlib.sha256(found).hexdigest()[:16]
    assert (packed.LAYOUT_VERSION, digest) == (2, LAYOUT_OF_BLOCKS[format])
