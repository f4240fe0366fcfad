"""NaN and infinities in a checkpoint: the tensor is named, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace import LLM
from headrace.errors import CorruptFile
from headrace.loading.export import Export
from headrace.weights.checkpoint import open_checkpoint
from tiny import convertible_model

NAMES = (
    "model.layers.1.mlp.up_proj.weight",
    "model.layers.1.input_layernorm.weight",
    "model.embed_tokens.weight",
)


def damaged(folder: Path, name: str, value: float) -> Path:
    model = convertible_model(folder)
    tensors = load_file(model / "model.safetensors")
    tensors[name].reshape(-1)[5] = value
    save_file(tensors, model / "model.safetensors")
    return model


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_rounding_names_the_tensor(tmp_path: Path, name: str, value: float) -> None:
    model = damaged(tmp_path, name, value)
    with open_checkpoint(model) as checkpoint:
        for type in ("q4_0", "bf16", "int8", "int4"):
            export = Export(checkpoint=checkpoint, path=model, name="a", type=type, threads=2)
            out, write = (
                (tmp_path / "a.gguf", export.to_gguf)
                if type in ("q4_0", "bf16")
                else (tmp_path / "out", export.to_folder)
            )
            with pytest.raises(CorruptFile, match=f"tensor {name} has weights that are no finite numbers"):
                write(out, lambda done, total: None)
    assert [path.name for path in tmp_path.iterdir()] == [model.name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quantization", ["keep", "int8", "int4"])
def test_loading_names_the_tensor(tmp_path: Path, name: str, quantization: str) -> None:
    model = damaged(tmp_path, name, np.inf)
    with pytest.raises(CorruptFile) as error:
        LLM(str(model), quantization=quantization, cache_dir=None).close()
    assert name in error.value.message
