"""AWQ: scaled checkpoints compute the same, rounding then loses less, the files are as any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from golden import FOLDER, Chunk, executor_for, make_step, relative_error, scattered_pages
from headrace.compress import awq as module
from headrace.compress.awq import Scaled, awq
from headrace.compress.calibrate import CalibrationOrder
from headrace.compress.grids import Int4Groups, Q4Zero, RotatedInt4, grid_for
from headrace.compress.scaled_checkpoint import ScaledCheckpoint, TensorFactors
from headrace.compress.scaled_inputs import ScaledInput, scaled_inputs
from headrace.errors import CorruptFile, UsageError
from headrace.loading.export import Export
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quant_types.block_type import Floats
from tiny import convertible_model

WINDOWS = np.random.default_rng(2).integers(2, 60, (3, 40)).astype(np.int32)


def quiet(done: int, total: int) -> None:
    del done, total


def program_of(checkpoint: CheckpointReader) -> Program:
    return verify(record(find_model(checkpoint.config).define))


def logits(checkpoint: CheckpointReader) -> NDArray[np.float32]:
    program = program_of(checkpoint)
    executor = executor_for("numpy", program, ProgramWeights(checkpoint, program))
    return executor.run(make_step(Chunk(WINDOWS[0], 0, scattered_pages(0))))


def scaled_at_random(checkpoint: CheckpointReader, inputs: list[ScaledInput]) -> ScaledCheckpoint:
    random = np.random.default_rng(4)
    columns, rows = dict[str, Floats](), dict[str, tuple[Floats, float]]()
    for one in inputs:
        factors = np.exp(random.standard_normal(one.channels)).astype(np.float32)
        columns |= dict.fromkeys(one.matrices, factors[one.channel_of])
        rows |= dict.fromkeys(one.producers, (factors, one.plus))
    scalings = {
        name: TensorFactors(columns.get(name), *rows.get(name, (None, 0.0))) for name in {*columns, *rows}
    }
    return ScaledCheckpoint(checkpoint, scalings)


# Inputs of q, k, v; of o; of gate and up; of down; of a head of its own. Experts, and matrices stored
# together, are not scaled.
COUNTS = {
    "llama2": 9,
    "llama_bias": 9,
    "llama_odd": 9,
    "qwen2": 8,
    "gemma2": 8,
    "starcoder2": 7,
    "gpt_neox": 3,
    "olmo2": 5,
    "mixtral": 5,
    "deepseek_v2": 4,
    "mamba2": 3,
    "phi3": 1,
    "falcon": 0,
    "gpt2": 0,
}


@pytest.mark.parametrize("golden", COUNTS)
def test_a_scaled_checkpoint_computes_the_same(golden: str) -> None:
    with open_checkpoint(FOLDER / golden) as checkpoint:
        inputs = scaled_inputs(program_of(checkpoint))
        scaled = scaled_at_random(checkpoint, inputs)
        assert len(inputs) == COUNTS[golden]
        assert len({name for one in inputs for name in one.matrices}) == sum(len(x.matrices) for x in inputs)
        assert relative_error(logits(scaled), logits(checkpoint)) < 1e-4
        for name in scaled.tensors:
            if scaled.row_dtype(name) == "F32" and len(scaled.info(name).shape) == 2:
                whole, (n, k) = scaled.float32(name), scaled.info(name).shape
                rows = np.empty((2, k), np.float32)
                scaled.read_rows(name, n - 2, 2, rows.reshape(-1).view(np.uint8).data)
                np.testing.assert_array_equal(rows, whole[n - 2 :])


def order_of(
    checkpoint: CheckpointReader, folder: Path, work: Path, type: str
) -> tuple[Export, CalibrationOrder]:
    export = Export(checkpoint=checkpoint, path=folder, name="tiny", type=type, threads=2, calibrated=True)
    grid_of = grid_for(export, is_gguf=type.startswith("q"))
    return export, CalibrationOrder(windows=WINDOWS, grid_of=grid_of, type=type, work=work)


def with_large_inputs(checkpoint: CheckpointReader) -> ScaledCheckpoint:
    """The same model, with inputs between a tenth and ten times as large."""
    return scaled_at_random(checkpoint, scaled_inputs(program_of(checkpoint)))


@pytest.mark.parametrize("type", ["q4_0", "w4a16"])
def test_less_is_lost(tmp_path: Path, type: str) -> None:
    folder = convertible_model(tmp_path, "llama2")
    with open_checkpoint(folder) as plain:
        source = with_large_inputs(plain)
        export, order = order_of(source, folder, tmp_path / "work", type)
        found = awq(source, order, quiet)
        expected = logits(source)
        written = {
            "awq": replace(export, checkpoint=found.checkpoint, ready=found.ready),
            "rtn": replace(export, checkpoint=source),
        }
        errors: dict[str, float] = {}
        for method, one in written.items():
            out = tmp_path / f"{method}{'.gguf' if type.startswith('q') else ''}"
            one.to_gguf(out, quiet) if out.suffix else one.to_folder(out, quiet)
            with open_checkpoint(out) as reader:
                errors[method] = float(np.square(logits(reader) - expected).mean())
    assert not found.unscaled and not found.left
    assert errors["awq"] < 0.5 * errors["rtn"]


def test_norms_are_numbers_of_bf16(tmp_path: Path) -> None:
    """Folders have norms in bf16: nothing of a factor is lost there."""
    with open_checkpoint(FOLDER / "llama2") as checkpoint:
        _, order = order_of(checkpoint, FOLDER / "llama2", tmp_path / "work", "q4_0")
        found = awq(checkpoint, order, quiet)
        norm = found.checkpoint.float32("model.layers.1.input_layernorm.weight")
        assert not np.array_equal(norm, checkpoint.float32("model.layers.1.input_layernorm.weight"))
    lost = np.abs((norm.view(np.uint32) & 0xFFFF).astype(np.int64))
    assert (np.minimum(lost, 0x10000 - lost) <= 2).all(), "but for the last bits of a division"


def same(one: Scaled, other: Scaled) -> bool:
    keys = one.ready.keys() == other.ready.keys()
    return keys and all(np.array_equal(one.ready[name], other.ready[name]) for name in one.ready)


def test_a_run_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_checkpoint(FOLDER / "llama2") as checkpoint:
        _, order = order_of(checkpoint, FOLDER / "llama2", tmp_path / "work", "q4_0")
        whole = awq(checkpoint, replace(order, work=tmp_path / "other"), quiet)
        real, calls = module._factors, list[str]()

        def counted(checkpoint: CheckpointReader, inputs: ScaledInput, *rest: Any) -> Floats:
            calls.append(inputs.matrices[0])
            return real(checkpoint, inputs, *rest)

        monkeypatch.setattr(module, "_factors", counted)

        class KilledError(Exception):
            """As if the process had ended."""

        def stop(done: int, total: int) -> None:
            del total
            if done == 5:
                raise KilledError

        with pytest.raises(KilledError):
            awq(checkpoint, order, stop)
        file = next(next((tmp_path / "work").iterdir()).iterdir())
        file.write_bytes(file.read_bytes()[:100])  # as a power cut leaves it
        assert same(awq(checkpoint, order, quiet), whole)
        inputs = scaled_inputs(program_of(checkpoint))
        wanted = {one.matrices[0] for one in inputs if not whole.ready.keys().isdisjoint(one.matrices)}
        assert set(calls) == wanted
        assert len(calls) <= len(set(calls)) + 1, "none is searched twice, but for the damaged one"
        calls.clear()
        assert same(awq(checkpoint, order, quiet), whole) and not calls
        awq(checkpoint, replace(order, windows=WINDOWS[:2]), quiet)
        assert len(calls) == len(wanted), "another text is another run"


@pytest.mark.parametrize("tokens", [[[5]], [[5] * 40]])
def test_texts_that_say_little(tmp_path: Path, tokens: list[list[int]]) -> None:
    with open_checkpoint(FOLDER / "llama2") as checkpoint:
        _, order = order_of(checkpoint, FOLDER / "llama2", tmp_path / "work", "q4_0")
        order = replace(order, windows=np.array(tokens, np.int32))
        if order.windows.size < 2:
            with pytest.raises(UsageError, match="the calibration text has 1 tokens"):
                awq(checkpoint, order, quiet)
            return
        found = awq(checkpoint, order, quiet)
    assert all(np.isfinite(Q4Zero().unpack(data)).all() for data in found.ready.values())


def test_experts_are_left_and_int4_is_refused(tmp_path: Path) -> None:
    def of(name: str) -> Int4Groups | None:
        return Int4Groups() if "experts" in name or "_proj" in name else None

    with open_checkpoint(FOLDER / "mixtral") as checkpoint:
        order = CalibrationOrder(windows=WINDOWS, grid_of=of, type="w4a16", work=tmp_path / "work")
        found = awq(checkpoint, order, quiet)
        assert found.left and all("experts" in name for name in found.left)
        with pytest.raises(UsageError, match="int4 rotates"):
            awq(checkpoint, replace(order, grid_of=lambda name: RotatedInt4(32)), quiet)


@pytest.mark.parametrize("damage", ["weights", "inputs"])
def test_numbers_that_are_none(tmp_path: Path, damage: str) -> None:
    def changed(values: Floats) -> Floats:
        values[0] = np.nan if damage == "weights" else 3e38
        return values

    name = "model.layers.0." + ("self_attn.k_proj" if damage == "weights" else "input_layernorm") + ".weight"
    with open_checkpoint(FOLDER / "llama2") as checkpoint:
        damaged = _Changed(checkpoint, name, changed)
        _, order = order_of(checkpoint, FOLDER / "llama2", tmp_path / "work", "q4_0")
        with np.errstate(all="ignore"), pytest.raises(CorruptFile) as error:
            awq(damaged, order, quiet)
    wanted = "layers.0.self_attn.k_proj" if damage == "weights" else "layers.0.self_attn.q_proj"
    assert wanted in error.value.message


class _Changed(ScaledCheckpoint):
    def __init__(self, source: CheckpointReader, name: str, change: Callable[[Floats], Floats]) -> None:
        super().__init__(source, {})
        self._name, self._change = name, change

    def float32(self, name: str) -> NDArray[np.float32]:
        values = super().float32(name)
        return self._change(values) if name == self._name else values


def test_other_programs_read_the_file(tmp_path: Path) -> None:
    """`gguf` reads what was rounded, and of the norms what was divided."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is the witness")
    folder = convertible_model(tmp_path, "llama2")
    with open_checkpoint(folder) as checkpoint:
        export, order = order_of(checkpoint, folder, tmp_path / "work", "q4_0")
        found = awq(checkpoint, order, quiet)
        replace(export, checkpoint=found.checkpoint, ready=found.ready).to_gguf(tmp_path / "x.gguf", quiet)
        norm = found.checkpoint.float32("model.layers.1.post_attention_layernorm.weight")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    up = stored["blk.1.ffn_up.weight"]
    values = gguf.quants.dequantize(up.data, up.tensor_type)
    np.testing.assert_array_equal(values, Q4Zero().unpack(found.ready["model.layers.1.mlp.up_proj.weight"]))
    np.testing.assert_array_equal(stored["blk.1.ffn_norm.weight"].data, norm)


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the witness is transformers")
    transformers = pytest.importorskip("transformers", reason="the witness is transformers")
    pytest.importorskip("compressed_tensors", reason="transformers reads such folders with it")
    folder = convertible_model(tmp_path, "llama2")
    with open_checkpoint(folder) as checkpoint:
        export, order = order_of(checkpoint, folder, tmp_path / "work", "w4a16")
        found = awq(checkpoint, order, quiet)
        replace(export, checkpoint=found.checkpoint, ready=found.ready).to_folder(tmp_path / "out", quiet)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(WINDOWS[:1].astype(np.int64))).logits[0].numpy()
    with open_checkpoint(tmp_path / "out") as written:
        assert relative_error(logits(written), expected) < 1e-4
