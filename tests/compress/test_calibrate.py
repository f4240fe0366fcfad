"""Calibration of checkpoints: inputs as the reference executor sees them, files, runs that were killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from safetensors.numpy import load_file

from golden import FOLDER, Chunk, executor_for, make_step, scattered_pages
from headrace.compress import calibrate as module
from headrace.compress.calibrate import CalibrationOrder, calibrate
from headrace.compress.grids import Int4Groups, Int8Rows, Q4Zero, grid_for
from headrace.compress.walk import walk
from headrace.errors import UsageError
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.export import Export
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.ops.value import Array
from headrace.program.program import Instruction
from headrace.program.record import record
from headrace.program.step import Step
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from tiny import convertible_model

WINDOWS = np.random.default_rng(2).integers(2, 60, (3, 40)).astype(np.int32)


def quiet(done: int, total: int) -> None:
    del done, total


@pytest.mark.parametrize("name", ["llama3", "gemma2", "mistral_window", "qwen3", "mamba2"])
def test_moments_are_those_of_what_the_reference_computes(name: str) -> None:
    with open_checkpoint(FOLDER / name) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        weights = ProgramWeights(checkpoint, program)
        executor = executor_for("numpy", program, weights)
        assert isinstance(executor, ReferenceExecutor)
        linears = [one for one in program.expanded() if one.name == "linear"]
        names = [one.inputs[1].name for one in linears if one.inputs[1] is not None]
        expected: dict[str, NDArray[np.float64]] = {}

        def trace(instruction: Instruction, outputs: tuple[Array, ...]) -> None:
            seen.update(zip(instruction.outputs, outputs, strict=True))

        for window in WINDOWS:
            seen: dict[Any, Array] = {}
            executor.run(_prompt(window), trace)
            for one in linears:
                x, w = one.inputs[:2]
                assert x is not None and w is not None
                rows = seen[x].astype(np.float64)
                expected[w.name] = expected.get(w.name, 0) + rows.T @ rows
        found: dict[str, NDArray[np.float64]] = {}

        def keep(name: str, moments: NDArray[np.float64]) -> Array:
            found[name] = moments.copy()
            return weights.float32(name)

        head = names[-1]  # of which the last row alone is computed
        walk(program, weights, WINDOWS, frozenset(names) - {head}, keep)
    assert found.keys() == set(names) - {head}
    for matrix, moments in found.items():
        scale = np.abs(expected[matrix]).max()
        np.testing.assert_allclose(moments / scale, expected[matrix] / scale, atol=1e-5)


def _prompt(window: NDArray[np.int32]) -> Step:
    return make_step(Chunk(window, 0, scattered_pages(0)))


def exported(folder: Path, out: Path, type: str, work: Path) -> Export:
    """An export whose matrices were rounded on the windows, written to `out`."""
    is_gguf = out.suffix == ".gguf"
    with open_checkpoint(folder) as checkpoint:
        export = Export(
            checkpoint=checkpoint, path=folder, name="tiny", type=type, threads=2, calibrated=True
        )
        order = CalibrationOrder(
            windows=WINDOWS, grid_of=grid_for(export, is_gguf=is_gguf), type=type, work=work
        )
        export = replace(export, ready=calibrate(checkpoint, order, quiet).ready)
        lines = export.to_gguf(out, quiet) if is_gguf else export.to_folder(out, quiet)
    assert max(line.worst for line in lines) < 0.5, "rows are in the file's order"
    return export


@pytest.mark.parametrize("type", ["w4a16", "int8", "w8a8"])
def test_a_folder_holds_what_was_rounded(tmp_path: Path, type: str) -> None:
    folder = convertible_model(tmp_path, "llama2")
    export = exported(folder, tmp_path / "out", type, tmp_path / "work")
    assert len(export.ready) == 6 * 2, "of two layers all but down_proj, whose 88 inputs are no groups of 32"
    with open_checkpoint(tmp_path / "out") as written:
        config = find_model(written.config)
        program = verify(record(config.define))
        reader = ProgramWeights(written, program)
        for name, data in export.ready.items():
            values = reader.float32(name)
            grid = Int4Groups() if type == "w4a16" else Int8Rows(values.shape[1])
            np.testing.assert_array_equal(values, grid.unpack(data))
    config_json = json.loads((tmp_path / "out" / "config.json").read_text())
    weights = config_json["quantization_config"]["config_groups"]["group_0"]["weights"]
    assert weights["group_size"] == (32 if type == "w4a16" else None)


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    folder = convertible_model(tmp_path, "llama2")
    export = exported(folder, tmp_path / "out", "w4a16", tmp_path / "work")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ours = load_file(folder / "model.safetensors")
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = {name: torch.from_numpy(np.array(value, np.float32)) for name, value in ours.items()}
    state |= {name: torch.from_numpy(Int4Groups().unpack(data)) for name, data in export.ready.items()}
    plain.load_state_dict(state, strict=False)
    prompt = torch.from_numpy(WINDOWS[:1].astype(np.int64))
    with torch.no_grad():
        got, expected = model(prompt).logits, plain(prompt).logits
    assert float((got - expected).abs().max() / expected.abs().max()) < 1e-2, "but for tables in bf16"


@pytest.mark.parametrize("type", ["q4_0", "q4_k"])
def test_a_gguf_file_holds_what_was_rounded(tmp_path: Path, type: str) -> None:
    """llama.cpp orders rows of q and k by halves of a head: `gguf` reads the file's own order."""
    gguf = pytest.importorskip("gguf")
    folder = convertible_model(tmp_path, "llama2")
    export = exported(folder, tmp_path / "tiny.gguf", type, tmp_path / "work")
    if type == "q4_k":
        assert not export.ready, "rows of 32 hold no block of 256"
        return
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    up = stored["blk.1.ffn_up.weight"]
    values = gguf.quants.dequantize(up.data, up.tensor_type)
    expected = Q4Zero().unpack(export.ready["model.layers.1.mlp.up_proj.weight"])
    np.testing.assert_array_equal(values, expected)
    query = stored["blk.0.attn_q.weight"]
    of_query = gguf.quants.dequantize(query.data, query.tensor_type)
    rounded = Q4Zero().unpack(export.ready["model.layers.0.self_attn.q_proj.weight"])
    assert not np.array_equal(of_query, rounded)
    np.testing.assert_array_equal(np.sort(of_query, axis=0), np.sort(rounded, axis=0))


def test_a_run_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = convertible_model(tmp_path, "llama2")
    with open_checkpoint(folder) as checkpoint:
        export = Export(
            checkpoint=checkpoint, path=folder, name="tiny", type="w4a16", threads=2, calibrated=True
        )
        order = CalibrationOrder(
            windows=WINDOWS, grid_of=grid_for(export, is_gguf=False), type="w4a16", work=tmp_path / "work"
        )
        whole = calibrate(checkpoint, replace(order, work=tmp_path / "other"), quiet)
        real, calls = module.gptq, list[str]()

        def counted(*args: Any, name: str) -> Any:
            calls.append(name)
            return real(*args, name=name)

        monkeypatch.setattr(module, "gptq", counted)

        class KilledError(Exception):
            """As if the process had ended."""

        def stop(done: int, total: int) -> None:
            del total
            if done == 5:
                raise KilledError

        with pytest.raises(KilledError):
            calibrate(checkpoint, order, stop)
        (next((tmp_path / "work").iterdir()) / "half.part").write_bytes(b"half")
        first = list(calls)
        again = calibrate(checkpoint, order, quiet)
        assert len(first) == 5 and len(calls) == len(whole.ready), "none is rounded twice"
        for name, data in whole.ready.items():
            assert np.array_equal(again.ready[name], data)
            assert again.losses[name] == whole.losses[name]
        calls.clear()
        calibrate(checkpoint, replace(order, windows=WINDOWS[:2]), quiet)
        assert len(calls) == len(whole.ready), "another text is another run"


@pytest.mark.parametrize("tokens", [[[5]], [[5] * 40]])
def test_texts_that_say_little(tmp_path: Path, tokens: list[list[int]]) -> None:
    """One token is enough for nothing; the same token again has inputs of one direction."""
    folder, windows = convertible_model(tmp_path, "llama2"), np.array(tokens, np.int32)
    with open_checkpoint(folder) as checkpoint:
        export = Export(
            checkpoint=checkpoint, path=folder, name="tiny", type="w4a16", threads=2, calibrated=True
        )
        order = CalibrationOrder(
            windows=windows, grid_of=grid_for(export, is_gguf=False), type="w4a16", work=tmp_path / "work"
        )
        if windows.size < 2:
            with pytest.raises(UsageError, match="the calibration text has 1 tokens"):
                calibrate(checkpoint, order, quiet)
            return
        found = calibrate(checkpoint, order, quiet)
    assert all(np.isfinite(Int4Groups().unpack(data)).all() for data in found.ready.values())


def test_experts_are_named(tmp_path: Path) -> None:
    def of_experts(name: str) -> Int4Groups | None:
        return Int4Groups() if "experts" in name else None

    with open_checkpoint(FOLDER / "mixtral") as checkpoint:
        order = CalibrationOrder(windows=WINDOWS, grid_of=of_experts, type="w4a16", work=tmp_path / "work")
        found = calibrate(checkpoint, order, quiet)
    assert not found.ready and found.left
