"""Every architecture from GGUF: goldens, written as llama.cpp's converter does, give their logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from gguf_conversion import Config, convert, turned
from safetensors.numpy import load_file

from golden import CAPACITY, FOLDER, Chunk, encoders_only, make_step, relative_error, scattered_pages
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model, known_model_types
from headrace.program.record import record
from headrace.program.text import format_program
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader

# Not here, as GGUF has no key for them: qwen2_window (which layers slide), smollm3 (which rotate: all but
# every fourth), gpt_neox_serial (its activation), qwen3_moe_mixed (which layers have experts), mamba2_groups
# (limits of its steps).
CASES = {
    "llama2": "LLAMA",
    "llama_bias": "LLAMA",
    "mistral_window": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "granite": "GRANITE",
    "smollm3_window": "SMOLLM3",
    "olmo2": "OLMO2",
    "olmo2_mqa": "OLMO2",
    "phi3": "PHI3",
    "phi3_partial": "PHI3",
    "gemma2": "GEMMA2",
    "gemma3": "GEMMA3",
    "gemma3_nested": "GEMMA3",
    "starcoder2": "STARCODER2",
    "starcoder2_window": "STARCODER2",
    "gpt_neox": "GPTNEOX",
    "gpt2": "GPT2",
    "falcon": "FALCON",
    "mixtral": "LLAMA",
    "mixtral_window": "LLAMA",
    "qwen3_moe": "QWEN3MOE",
    "mamba2": "MAMBA2",
}


@pytest.mark.parametrize(("name", "kind"), CASES.items())
def test_a_golden_from_gguf_gives_its_logits(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / f"{name}.gguf"
    convert(FOLDER / name, kind, path)
    with open_checkpoint(path) as checkpoint, open_checkpoint(FOLDER / name) as folder:
        program = verify(record(find_model(checkpoint.config).define))
        parts = ProgramWeights(checkpoint, program)
        weights = {weight: parts.float32(weight) for weight in program.weights}
        assert checkpoint.tensors.keys() == folder.tensors.keys()
        for tensor in checkpoint.tensors:
            theirs = folder.float32(tensor)
            theirs = turned({}, tensor, theirs) if kind == "GPT2" else theirs
            np.testing.assert_allclose(checkpoint.float32(tensor), theirs, atol=1e-6)
            if theirs.ndim == 2:
                assert (rows_of(checkpoint, tensor) == theirs).all()
    truth = load_file(FOLDER / name / "golden.safetensors")
    executor = ReferenceExecutor(program, weights, CAPACITY)
    logits = executor.run(make_step(Chunk(truth["prompt"], 0, scattered_pages(0))))
    assert relative_error(logits, truth["logits"]) <= 1e-4


def rows_of(checkpoint: CheckpointReader, name: str) -> np.ndarray:
    """A matrix as it is packed: block by block."""
    n, k = checkpoint.info(name).shape
    rows = np.zeros((n, k), np.float32)
    for start in range(0, n, 7):
        block = rows[start : start + 7]
        checkpoint.read_rows(name, start, len(block), block.reshape(-1).view(np.uint8).data)
    return rows


def test_deepseek_is_that_of_the_folder(tmp_path: Path) -> None:
    """The golden's two factors of attention differ, for which GGUF has one key: so not its logits, but its
    tensors, and its program with the factors made equal."""
    convert(FOLDER / "deepseek_v3", "DEEPSEEK2", tmp_path / "deepseek.gguf")
    with (
        open_checkpoint(tmp_path / "deepseek.gguf") as file,
        open_checkpoint(FOLDER / "deepseek_v3") as folder,
    ):
        assert file.tensors.keys() == folder.tensors.keys()
        for name in folder.tensors:
            assert (file.float32(name) == folder.float32(name)).all(), name
        scaling = cast(Config, folder.config["rope_scaling"])
        theirs = find_model(folder.config | {"rope_scaling": scaling | {"mscale": scaling["mscale_all_dim"]}})
        ours = find_model(file.config)
        assert format_program(record(ours.define)) == format_program(record(theirs.define))
        for one, other in zip(ours.config.ropes, theirs.config.ropes, strict=True):
            assert one is not None and other is not None and one.scale == other.scale
            assert (one.inv_freq == other.inv_freq).all()


def test_every_model_has_an_architecture() -> None:
    covered = {json.loads((FOLDER / name / "config.json").read_text())["model_type"] for name in CASES}
    assert covered >= set(known_model_types()) - {
        *("mistral", "deepseek_v2", "deepseek_v3", "gpt_oss"),  # in tests of their own
        *encoders_only(),
    }
