"""GGUF files whose metadata has one wrong value: a program or a typed error."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocks import block_model
from gguf_file import Raw, Stored, gguf_bytes
from headrace.errors import CorruptFile, HeadraceError
from headrace.loading.export import Export
from headrace.loading.loader import default_params
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.text_assets import load_text_assets
from headrace.loading.weight_specs import weight_specs
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf.reader import GgufFile
from tiny import convertible_model

WRONG: list[Any] = [
    -1,
    0,
    1,
    Raw(4, struct.pack("<I", 2**31 - 1)),
    Raw(10, b"\xff" * 8),
    Raw(6, struct.pack("<f", 1e38)),
    float("nan"),
    "x",
    ["x"],
    np.zeros(0, np.float32),
    np.arange(3, dtype=np.int32),
]


def open_model(path: Path) -> None:
    """What loading does, up to the packing of weights."""
    with open_checkpoint(path) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        weight_specs(program, ProgramWeights(checkpoint, program), EngineOptions(), path)
        default_params(checkpoint.generation_config)
        load_text_assets(path, checkpoint.metadata)


def read_back(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """What gguf_bytes makes the same file of."""
    with GgufFile(path) as file:
        tensors: dict[str, Stored] = {}
        for info in file.tensors.values():
            data = bytearray(info.nbytes)
            file.read_into(info, 0, memoryview(data))
            tensors[info.name] = Stored(info.dtype, info.shape, bytes(data))
        return dict(file.metadata), tensors


def model(folder: Path, name: str) -> Path:
    if name == "blocks":
        return block_model(folder, "Q4_0")
    source, path = convertible_model(folder, name), folder / "model.gguf"
    with open_checkpoint(source) as checkpoint:
        made = Export(checkpoint=checkpoint, path=source, name=name, type="f32", threads=1)
        made.to_gguf(path, lambda done, total: None)
    return path


@pytest.mark.parametrize(
    "name", ["blocks", "gemma3", "mixtral_window", "qwen3_yarn", "falcon", "phi3_partial"]
)
def test_one_wrong_value(tmp_path: Path, name: str) -> None:
    metadata, tensors = read_back(model(tmp_path, name))
    path = tmp_path / "x.gguf"
    refused = 0
    for key in metadata:
        for value in WRONG:
            path.unlink(missing_ok=True)
            path.write_bytes(gguf_bytes(metadata | {key: value}, tensors))
            try:
                open_model(path)
            except HeadraceError as error:
                assert error.message
                refused += 1
    assert refused > len(metadata) * 3


def test_heads_of_nothing(tmp_path: Path) -> None:
    metadata, tensors = read_back(block_model(tmp_path, "Q4_0"))
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(metadata | {"llama.embedding_length": 1}, tensors))
    with pytest.raises(CorruptFile, match="an even 0 rows for each head"):
        open_model(path)


@pytest.mark.parametrize(
    ("key", "error"), [("llama.rope.scaling.type", "rope scaling"), ("llama.expert_count", "expert_count")]
)
def test_arrays_in_the_place_of_one_value(tmp_path: Path, key: str, error: str) -> None:
    metadata, tensors = read_back(block_model(tmp_path, "Q4_0"))
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(metadata | {key: np.zeros(0, np.float32)}, tensors))
    with pytest.raises(HeadraceError, match=error):
        open_model(path)


def test_cut_at_a_thousand_points(tmp_path: Path) -> None:
    """Of the header and of the tensors after it."""
    path = block_model(tmp_path, "Q4_0")
    size = path.stat().st_size
    points = np.unique(np.random.default_rng(3).integers(0, size - 31, 1000))[::-1]  # 31 may be padding
    for length in points.tolist():
        os.truncate(path, length)
        with pytest.raises(CorruptFile, match=r"^blocks-Q4_0\.gguf"):
            open_model(path)
