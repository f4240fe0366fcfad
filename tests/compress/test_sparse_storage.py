"""Pruned matrices stored without their zeros: the same weights in fewer bytes, for compressed-tensors too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from golden import FOLDER
from headrace.compress.pruning.prune import PruneOrder, float_type, pruned
from headrace.errors import UsageError
from headrace.loading.export import Export
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.quantized.sparse import BITMASK, BITMASK_24
from headrace.weights.safetensors.sparse_rows import SparseRows
from headrace.weights.tensor_output import Converter
from tiny import tiny_model

WINDOWS = np.random.default_rng(2).integers(2, 60, (3, 40)).astype(np.int32)
CASES = [("llama2", BITMASK, None), ("llama2", BITMASK_24, "2:4"), ("llama2_bf16", BITMASK_24, "2:4")]


def quiet(done: int, total: int) -> None:
    del done, total


def written(folder: Path, out: Path, format: str, pattern: str | None) -> None:
    """`out` with zeros left out, and `out`-dense."""
    out.mkdir()
    order = PruneOrder(windows=WINDOWS, sparsity=0.5, pattern=pattern, method="wanda", format=format)
    with open_checkpoint(folder) as source, pruned(source, order, out, quiet) as (reader, _):
        export = Export(checkpoint=reader, path=folder, name="a", type=float_type(source), threads=2)
        export.to_folder(out.with_name(f"{out.name}-dense"), quiet)
        replace(export, sparse=format).to_folder(out, quiet)


@pytest.mark.parametrize(("golden", "format", "pattern"), CASES)
def test_the_same_weights_in_fewer_bytes(
    tmp_path: Path, golden: str, format: str, pattern: str | None
) -> None:
    written(tiny_model(tmp_path, golden), tmp_path / "out", format, pattern)
    with open_checkpoint(tmp_path / "out") as found, open_checkpoint(tmp_path / "out-dense") as dense:
        assert found.tensors.keys() == dense.tensors.keys()
        for name, info in dense.tensors.items():
            assert (found.info(name).shape, found.row_dtype(name)) == (info.shape, dense.row_dtype(name))
            np.testing.assert_array_equal(found.float32(name), dense.float32(name), err_msg=name)
    stored, plain = (load_bytes(tmp_path / name) for name in ("out", "out-dense"))
    sparse = [name for name in stored if name.endswith(".compressed")]
    assert len(sparse) == 14 and sum(stored.values()) < 0.85 * sum(plain.values())
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["quant_method"] == "compressed-tensors"
    config = settings["sparsity_config"]
    assert (config["format"], config["targets"]) == (format, ["Linear"])
    assert abs(config["global_sparsity"] - 0.5) < 0.01 and "lm_head" in config["ignore"]


def load_bytes(folder: Path) -> dict[str, int]:
    """Bytes of each tensor of the file, as its header says."""
    raw = (folder / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {
        name: entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in header.items()
        if name != "__metadata__"
    }


@pytest.mark.parametrize(("golden", "format", "pattern"), CASES[:2])
def test_compressed_tensors_reads_it(tmp_path: Path, golden: str, format: str, pattern: str | None) -> None:
    torch = pytest.importorskip("torch", reason="compressed-tensors needs torch")
    module = pytest.importorskip(
        "compressed_tensors.compressors.sparse_compressors",
        reason="compressed-tensors below 0.15 is the witness: later ones have no sparse formats",
    )
    written(tiny_model(tmp_path, golden), tmp_path / "out", format, pattern)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    with open_checkpoint(tmp_path / "out") as found:
        for layer in [name.removesuffix(".compressed") for name in stored if name.endswith(".compressed")]:
            fields = ("shape", "compressed", "bitmask", *(["row_offsets"] if pattern is None else []))
            data: dict[str, Any] = {name: torch.from_numpy(stored[f"{layer}.{name}"]) for name in fields}
            if pattern is None:
                data["shape"] = data["shape"].tolist()
                theirs = module.BitmaskTensor(**data).decompress()
            else:
                theirs = module.Sparse24BitMaskTensor.from_compressed_data(**data).decompress()
            np.testing.assert_array_equal(found.float32(f"{layer}.weight"), theirs.float().numpy())


@pytest.mark.parametrize("format", [BITMASK, BITMASK_24])
@pytest.mark.parametrize("k", [4, 12, 20, 68])
def test_rows_of_any_width(format: str, k: int) -> None:
    """Bits of a row that is no multiple of 8 end with bits that stand for nothing."""
    weights = np.random.default_rng(k).standard_normal((5, k)).astype("<f4").reshape(5, -1, 4)
    weights[:, :, 1:3] = [0.0, -0.0]
    if format == BITMASK_24:
        weights[0, 0] = 0  # fewer than two are left: zeros are stored
    rows = weights.reshape(5, k).view(np.uint8)
    outputs = SparseRows(format, "F32", 5, k).outputs("a.weight", lambda: iter([rows[:2], rows[2:]]))
    stored = {one.name: b"".join(block.tobytes() for block in one.blocks()) for one in outputs}
    for one in outputs:
        assert len(stored[one.name]) == one.nbytes
    mask = np.frombuffer(stored["a.bitmask"], np.uint8).reshape(5, -1)
    bits = np.unpackbits(mask, axis=1, count=k, bitorder="little").astype(bool)
    back = np.zeros((5, k), "<f4")
    back[bits] = np.frombuffer(stored["a.compressed"], "<f4")
    np.testing.assert_array_equal(back, weights.reshape(5, k))


def test_what_is_not_smaller_stays_as_it_is() -> None:
    folder = FOLDER / "llama2"
    with open_checkpoint(folder) as source:
        export = Export(checkpoint=source, path=folder, name="a", type="f32", threads=1, sparse=BITMASK)
        outputs = export.folder(Converter(1)).outputs()
    assert not [one.name for one in outputs if "bitmask" in one.name]
    whole = np.ones((4, 8), "<f4").view(np.uint8)
    assert not SparseRows(BITMASK_24, "F32", 4, 8).outputs("a.weight", lambda: iter([whole]))
    assert not SparseRows(BITMASK, "F32", 4, 8).outputs("a.weight", lambda: iter([0 * whole]))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"format": "zip", "sparsity": 0.5}, "--format is zip: use dense, sparse-bitmask, sparse-24-bitmask"),
        ({"format": BITMASK, "ffn": 0.5}, "give --sparsity too"),
        ({"format": BITMASK_24, "sparsity": 0.5}, "give --pattern 2:4"),
    ],
)
def test_formats_that_do_not_fit(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PruneOrder(windows=WINDOWS, **asked).check()
