"""Parts of stored tensors, read for the packers, against the same parts of the whole tensor in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from golden import FOLDER, NAMES
from headrace.engine.request import EngineRequest
from headrace.errors import CorruptFile, UnsupportedModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gather import gather
from headrace.ops.linear import linear
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.program.program import Program
from headrace.program.record import record
from headrace.sampling.params import SamplingParams
from headrace.weights.checkpoint import open_checkpoint
from tiny import Running, tiny_model

ROWS, INPUTS = 24, 8
WHOLE = np.random.default_rng(3).standard_normal((ROWS, INPUTS), dtype=np.float32)
PARTS = {
    "whole": (TensorSlice(of=ROWS), np.arange(ROWS)),
    "one piece": (TensorSlice(of=ROWS, first=5), np.arange(5, 5 + 11)),
    "blocks": (TensorSlice(of=ROWS, first=2, block=2, stride=6), np.array([2, 3, 8, 9, 14, 15, 20, 21])),
    "even first": (
        TensorSlice(of=ROWS, first=2, block=4, stride=12, even_first=True),
        np.array([2, 4, 3, 5, 14, 16, 15, 17]),
    ),
}


# Of ROWS rows in all, the same four rows of each of two matrices and the first INPUTS of their inputs.
STACKED = TensorSlice(of=ROWS, first=1, block=4, stride=12, transposed=True, matrices=2, inputs=INPUTS + 3)


def program_of(part: TensorSlice, count: int) -> Program:
    def define(m: Builder) -> Value:
        x = gather(embed(m.tokens, m.weight("table", 10, INPUTS)), m.rows)
        return linear(x, m.weight("w", count, INPUTS, part=part))

    return record(define)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("case", PARTS)
def test_rows_of_a_part(tmp_path: Path, case: str, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headrace.loading.program_weights._BLOCK_BYTES", 300
    )  # several blocks of a transposed tensor
    shape, rows = PARTS[case]
    part = replace(shape, transposed=transposed)
    (tmp_path / "config.json").write_text("{}")
    stored = np.ascontiguousarray(WHOLE.T) if transposed else WHOLE
    save_file({"w": stored.astype(np.float16)}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        source = ProgramWeights(checkpoint, program_of(part, len(rows)))
        name = f"w{part}"
        expected = WHOLE.astype(np.float16)[rows]
        assert source.info(name).shape == expected.shape
        assert source.info(name).nbytes == expected.nbytes
        assert np.array_equal(source.float32(name), expected.astype(np.float32))
        for start, count in ((0, len(rows)), (1, 5), (len(rows) - 1, 1)):
            got = np.zeros(count * INPUTS * 2 + 6, np.uint8)
            source.read_rows(name, start, count, got.data)
            assert np.array_equal(
                got[:-6].view(np.float16).reshape(count, INPUTS), expected[start : start + count]
            )
            assert not got[-6:].any()


@pytest.mark.parametrize("stacked", [False, True])
def test_rows_of_transposed_matrices(tmp_path: Path, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.loading.program_weights._BLOCK_BYTES", 100)
    (tmp_path / "config.json").write_text("{}")
    stored = np.random.default_rng(4).standard_normal((2, INPUTS + 3, ROWS // 2), dtype=np.float32)
    save_file({"w": stored if stacked else stored.reshape(-1, ROWS // 2)}, tmp_path / "model.safetensors")
    expected = np.concatenate([matrix.T[1:5, :INPUTS] for matrix in stored])
    with open_checkpoint(tmp_path) as checkpoint:
        source = ProgramWeights(checkpoint, program_of(STACKED, len(expected)))
        name = f"w{STACKED}"
        assert source.info(name).shape == expected.shape
        assert source.info(name).nbytes == expected.nbytes
        assert np.array_equal(source.float32(name), expected)
        for start, count in ((0, 8), (3, 4), (7, 1)):
            got = np.zeros((count, INPUTS), np.float32)
            source.read_rows(name, start, count, got.reshape(-1).view(np.uint8).data)
            assert np.array_equal(got, expected[start : start + count])


def test_a_tensor_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": WHOLE}, tmp_path / "model.safetensors")
    part = TensorSlice(of=ROWS + 1)
    with open_checkpoint(tmp_path) as checkpoint:
        source = ProgramWeights(checkpoint, program_of(part, 4))
        with pytest.raises(CorruptFile, match=r"w has shape \(24, 8\), config.json implies \(25, 8\)"):
            source.info(f"w{part}")


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_number_is_used_once(name: str) -> None:
    """The parts of a tensor cover it, and no two of them overlap."""
    with open_checkpoint(FOLDER / name) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        source = ProgramWeights(checkpoint, program)
        used = sum(int(np.prod(source.info(weight).shape)) for weight in program.weights)
        assert used == sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values())
        for weight, (tensor, part) in program.parts.items():
            count = source.info(weight).shape[0]
            for other, (same, another) in program.parts.items():
                if other != weight and same == tensor and part.transposed == another.transposed:
                    shared = np.intersect1d(part.rows(0, count), another.rows(0, source.info(other).shape[0]))
                    assert not shared.size, (weight, other)


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3", "falcon", "gemma3", "gpt2", "gpt_neox", "gpt_oss", "mixtral", "phi3", "qwen3_moe_mixed"],
)
def test_a_loaded_model_gives_the_golden_tokens(tmp_path: Path, name: str) -> None:
    """Parts are packed by the native code here, block by block, where the tests of models read them whole."""
    truth = load_file(FOLDER / name / "golden.safetensors")
    model = load_model(str(tiny_model(tmp_path, name)), EngineOptions(max_num_seqs=2, max_batch_tokens=16))
    prompt, greedy = truth["prompt"].tolist(), truth["greedy"].tolist()
    params = SamplingParams(temperature=0, max_tokens=len(greedy), ignore_eos=True)
    outcome = Running(model.engine, EngineRequest(prompt=tuple(prompt), params=params)).finish()
    model.close()
    assert outcome.tokens[0] == greedy


def stack_program() -> Program:
    def define(m: Builder) -> Value:
        x = gather(embed(m.tokens, m.weight("table", 10, INPUTS)), m.rows)
        return linear(x, m.weight("e.*.w", 3 * ROWS, INPUTS, stack=3), m.weight("e.*.b", 3 * ROWS, stack=3))

    return record(define)


def stored_stack(folder: Path, **changes: np.ndarray) -> None:
    (folder / "config.json").write_text("{}")
    tensors = {f"e.{i}.w": (WHOLE + i).astype(np.float16) for i in range(3)}
    tensors |= {f"e.{i}.b": WHOLE[:, i].copy() for i in range(3)}
    save_file(tensors | changes, folder / "model.safetensors")


def test_rows_of_a_stack(tmp_path: Path) -> None:
    stored_stack(tmp_path)
    expected = np.concatenate([(WHOLE + i).astype(np.float16) for i in range(3)])
    with open_checkpoint(tmp_path) as checkpoint:
        source = ProgramWeights(checkpoint, stack_program())
        assert source.info("e.*.w").shape == expected.shape
        assert source.info("e.*.w").nbytes == expected.nbytes
        assert source.row_dtype("e.*.w") == "F16"
        assert np.array_equal(source.float32("e.*.w"), expected.astype(np.float32))
        assert np.array_equal(source.float32("e.*.b"), WHOLE[:, :3].T.reshape(-1))
        for start, count in ((0, 3 * ROWS), (ROWS - 1, 2), (5, ROWS), (ROWS, ROWS), (3 * ROWS - 1, 1)):
            got = np.zeros(count * INPUTS * 2 + 6, np.uint8)
            source.read_rows("e.*.w", start, count, got.data)
            assert np.array_equal(got[:-6].view(np.float16).reshape(count, INPUTS), expected[start:][:count])
            assert not got[-6:].any()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            WHOLE[1:].astype(np.float16),
            CorruptFile,
            r"e.1.w has shape \(23, 8\), config.json implies \(24, 8\)",
        ),
        (WHOLE, UnsupportedModel, "e.1.w is stored as F32, e.0.w as F16"),
    ],
)
def test_a_stack_of_unequal_tensors_is_refused(
    tmp_path: Path, wrong: np.ndarray, error: type[Exception], message: str
) -> None:
    stored_stack(tmp_path, **{"e.1.w": wrong})
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(error, match=message):
        ProgramWeights(checkpoint, stack_program()).info("e.*.w")


def test_names_without_their_first_part(tmp_path: Path) -> None:
    """openai-community/gpt2 stores transformer.wte.weight as wte.weight."""
    folder = tiny_model(tmp_path, "gpt2")
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): data for name, data in stored.items()},
        folder / "model.safetensors",
    )
    with open_checkpoint(folder) as checkpoint:
        source = ProgramWeights(checkpoint, record(find_model(checkpoint.config).define))
        assert np.array_equal(source.float32("transformer.wte.weight"), stored["transformer.wte.weight"])
