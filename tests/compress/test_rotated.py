"""GPTQ into the rotated int4 of the loader: on matrices, on checkpoints, and as a folder that is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace import _native
from headrace.compress.calibrate import CalibrationOrder, calibrate
from headrace.compress.grids import RotatedInt4, grid_for
from headrace.compress.rotated import gptq_rotated
from headrace.errors import CorruptFile
from headrace.llm import LLM
from headrace.loading.export import Export
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.weight_specs import weight_specs
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.weights import formats
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.packing.packed_weights import load_packed
from headrace.weights.safetensors.rotated_rows import RotatedRows
from tiny import convertible_model

WINDOWS = np.random.default_rng(2).integers(2, 60, (3, 40)).astype(np.int32)
Matrix = NDArray[np.float32]


def drawn(n: int, k: int, seed: int = 11) -> tuple[Matrix, NDArray[np.float64]]:
    """Weights, and inputs that depend on each other and differ in size, as those of a layer do."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((k, k)) * 0.2 + np.eye(k)
    rows = (random.standard_normal((4 * k, k)) @ mixing) * np.exp(random.standard_normal(k))
    return (0.02 * random.standard_t(5, (n, k))).astype(np.float32), rows


def lost(weight: Matrix, values: Matrix, rows: NDArray[np.float64]) -> float:
    return float(np.square(rows @ (weight - values).T).sum() / np.square(rows @ weight.T).sum())


@pytest.mark.parametrize("k", [512, 192, 96])
def test_products_lose_less_than_by_plain_rounding(k: int) -> None:
    weight, rows = drawn(64, k)
    rounded = gptq_rotated(weight, rows.T @ rows, name="w")
    assert rounded.data.shape == (64, RotatedRows("int4", k).kind.row_bytes(k))
    np.testing.assert_array_equal(RotatedInt4(k).unpack(rounded.data), rounded.values)
    assert rounded.loss == pytest.approx(lost(weight, rounded.values, rows), rel=1e-4)
    held_out = rows[: 2 * k] + 0.1 * rows[2 * k :]
    plain = formats.unpack("int4", formats.pack("int4", weight), *weight.shape)
    assert lost(weight, rounded.values, held_out) < 0.6 * lost(weight, plain, held_out)


def test_hard_inputs() -> None:
    weight, rows = drawn(16, 256)
    weight[3] = 0
    one_token = np.repeat(rows[:1], 7, axis=0)
    dead = rows.copy()
    dead[:, ::3] = 0
    for inputs in (one_token, dead, np.zeros_like(rows), 1e9 * rows):
        rounded = gptq_rotated(weight, inputs.T @ inputs, name="w")
        assert np.isfinite(rounded.values).all() and not rounded.values[3].any()
        assert np.abs(rounded.values - weight).max() < 0.2, "no weight runs away"
    broken = weight.copy()
    broken[1, 3] = np.inf
    with pytest.raises(CorruptFile, match=r"layers\.3\.w has weights that are no finite numbers"):
        gptq_rotated(broken, np.eye(256), name="layers.3.w")
    with pytest.raises(CorruptFile, match="the inputs of w overflow"):
        gptq_rotated(weight, np.full((256, 256), np.nan), name="w")


def written(folder: Path, out: Path, work: Path | None) -> Export:
    """The int4 folder of a model, rounded on the windows where there is a folder for the work."""
    with open_checkpoint(folder) as checkpoint:
        export = Export(checkpoint=checkpoint, path=folder, name="tiny", type="int4", threads=2)
        if work is not None:
            order = CalibrationOrder(
                windows=WINDOWS, grid_of=grid_for(export, is_gguf=False), type="int4", work=work
            )
            found = calibrate(checkpoint, order, lambda done, total: None)
            assert found.ready and max(found.losses.values()) < 0.05
            export = replace(export, calibrated=True, ready=found.ready)
        export.to_folder(out, lambda done, total: None)
    return export


def packed(folder: Path, quantization: str) -> dict[str, tuple[str, Matrix]]:
    """Every matrix of a program as it is loaded: its format, and the numbers."""
    with open_checkpoint(folder) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        parts = ProgramWeights(checkpoint, program)
        wanted = weight_specs(program, parts, EngineOptions(quantization=quantization), folder)
        loaded = load_packed(parts, wanted, _native.Pool(2), cache=None)
    return {
        name: (one.format, formats.unpack(one.format, one.data, one.n, one.k))
        for name, one in loaded.items()
        if one.format in formats.FORMATS
    }


@pytest.mark.parametrize("name", ["llama2", "llama3_tied", "phi3", "mixtral"])
def test_plain_rounding_is_what_loading_does(tmp_path: Path, name: str) -> None:
    """Fused matrices and experts too. Matrices whose inputs are no multiple of 32 stay floats in a folder."""
    folder = convertible_model(tmp_path, name)
    written(folder, tmp_path / "out", None)
    stored, converted = packed(tmp_path / "out", "keep"), packed(folder, "int4")
    same = 0
    for matrix, (format, values) in stored.items():
        if format in ("int4", "int8"):
            assert format == converted[matrix][0], matrix
            np.testing.assert_array_equal(values, converted[matrix][1], err_msg=matrix)
            same += 1
    assert same > 4


def test_a_calibrated_folder_holds_what_was_rounded(tmp_path: Path) -> None:
    folder = convertible_model(tmp_path, "llama2")
    export = written(folder, tmp_path / "out", tmp_path / "work")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings == {"quant_method": "headrace", "format": "rotated"}
    loaded = packed(tmp_path / "out", "keep")
    for name, data in export.ready.items():
        expected = RotatedInt4(data.shape[1] // 22 * 32).unpack(data)  # of 32 inputs, the rotation's block
        np.testing.assert_array_equal(loaded[name][1], expected)
    for quantization in ("keep", "int8", "bf16"):
        with LLM(tmp_path / "out", quantization=quantization) as llm:
            assert llm.generate("ab", max_tokens=4, temperature=0.0).usage.completion_tokens > 0
