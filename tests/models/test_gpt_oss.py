"""gpt-oss as published: MXFP4 experts, stored transposed compared with float ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from golden import FOLDER
from headrace.engine.request import EngineRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.ops.value import Array
from headrace.program.record import record
from headrace.sampling.params import SamplingParams
from headrace.weights.checkpoint import open_checkpoint
from tiny import Running, tiny_model

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
GOLDEN = FOLDER / "gpt_oss"


def write(folder: Path, tensors: dict[str, np.ndarray], **fields: object) -> None:
    folder.mkdir(exist_ok=True)
    config = json.loads((GOLDEN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    save_file(tensors, folder / "model.safetensors")


def weights_of(folder: Path) -> dict[str, Array]:
    """All weights of the program; float rows are also read row by row."""
    with open_checkpoint(folder) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        source = ProgramWeights(checkpoint, program)
        weights = {name: source.float32(name) for name in program.weights}
        for name, weight in weights.items():
            if weight.ndim == 2 and source.row_dtype(name) == "F32":
                rows = np.zeros_like(weight)
                source.read_rows(name, 0, len(rows), rows.reshape(-1).view(np.uint8).data)
                assert np.array_equal(rows, weight), name
    return {name.replace(".T", ""): weight for name, weight in weights.items()}


def test_mxfp4_experts_equal_float_experts(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    plain = load_file(GOLDEN / "model.safetensors")
    packed = dict(plain)
    for name in list(plain):
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, inputs, outputs = plain[name].shape
        blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
        scales = rng.integers(122, 127, (experts, outputs, inputs // 32), np.uint8)
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
        values = E2M1[codes] * np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
        plain[name] = np.ascontiguousarray(values.reshape(experts, outputs, inputs).transpose(0, 2, 1))
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    write(tmp_path / "plain", plain)
    write(tmp_path / "packed", packed, quantization_config={"quant_method": "mxfp4"})
    expected, got = weights_of(tmp_path / "plain"), weights_of(tmp_path / "packed")
    assert {name.split("[")[0] for name in expected} == {name.split("[")[0] for name in got}
    assert all(np.array_equal(got[name], weight) for name, weight in expected.items() if name in got)
    assert sum("gate_up_proj[" in name for name in got.keys() & expected.keys()) == 2 * 3

    folder = tiny_model(tmp_path, "gpt_oss")
    write(folder, packed, quantization_config={"quant_method": "mxfp4"})
    model = load_model(str(folder), EngineOptions(max_num_seqs=2, max_batch_tokens=16))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    outcome = Running(model.engine, EngineRequest(prompt=tuple(range(2, 22)), params=params)).finish()
    model.close()
    assert len(outcome.tokens[0]) == 8
