"""GGUF adapters, as convert_lora_to_gguf.py of llama.cpp writes them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.ops.value import Array
from headrace.weights.adapters.adapter_file import AdapterFile, LoraMatrices, adapter_of, check_count
from headrace.weights.gguf.architecture import Architecture
from headrace.weights.gguf.families import architecture_of
from headrace.weights.gguf.reader import GgufFile
from headrace.weights.gguf.tensor_names import named_tensors
from headrace.weights.tensor_file import TensorInfo

_HALVES = (".lora_a", ".lora_b")


def read_gguf_adapter(path: Path, head_dim: int) -> AdapterFile:
    """The adapter in a file, for a model with heads of `head_dim`. CorruptFile, UnsupportedModel."""
    with closing(GgufFile(path)) as file:
        metadata = file.metadata
        if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
            raise UnsupportedModel(
                f"{path.name} is no LoRA adapter: its general.type is {metadata.get('general.type')!r}, its"
                f" adapter.type {metadata.get('adapter.type')!r}"
            )
        for key in metadata:
            if key.startswith("adapter.") and key not in ("adapter.type", "adapter.lora.alpha"):
                raise UnsupportedModel(f"{path.name} has {key[:100]}, which is not supported here")
        alpha = metadata.get("adapter.lora.alpha", 0.0)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise CorruptFile(f"{path.name}: adapter.lora.alpha is {alpha!r:.50}")
        architecture = architecture_of(metadata, path.name)
        check_count(file.tensors, path.name)
        matrices: dict[str, LoraMatrices] = {}
        for stem, (a, b) in _pairs(file, path.name).items():
            if len(a.shape) != 2 or len(b.shape) != 2 or not a.shape[0]:
                raise UnsupportedModel(f"{path.name}: {stem} is no linear layer")
            name, values = _rows(stem, b, file, architecture, head_dim)
            scale = float(alpha) / a.shape[0] if alpha else 1.0  # as llama.cpp does it
            matrices[name] = LoraMatrices(file.float32(a), values, scale)
        base = metadata.get("general.base_model.0.name", "")
        return adapter_of(str(base)[:200], matrices, path.name)


def _pairs(file: GgufFile, name: str) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    halves: dict[str, dict[str, TensorInfo]] = {}
    for tensor, info in file.tensors.items():
        stem, half = tensor[:-7], tensor[-7:]
        if half not in _HALVES or stem.startswith("token_embd."):
            raise UnsupportedModel(
                f"{name} holds {tensor[:200]!r}: only .lora_a and .lora_b of linear layers are supported"
            )
        halves.setdefault(stem, {})[half] = info
    for stem, pair in halves.items():
        if len(pair) != 2:
            raise CorruptFile(f"{name}: {stem[:200]!r} has only one of .lora_a and .lora_b")
    return {stem: (pair[".lora_a"], pair[".lora_b"]) for stem, pair in halves.items()}


def _rows(
    stem: str, b: TensorInfo, file: GgufFile, architecture: Architecture, head_dim: int
) -> tuple[str, Array]:
    """The name of the changed tensor in a checkpoint, and B with its rows in a checkpoint's order."""
    names = [name for name, _ in named_tensors(replace(b, name=stem), architecture, file.path.name)]
    if len(names) != 1:
        raise UnsupportedModel(f"{file.path.name}: {stem} has experts, whose adapters are not supported")
    values = file.float32(b)
    order = architecture.order_of(names[0])
    if order is not None:
        if not order.divides(len(values), head_dim):
            raise CorruptFile(f"{file.path.name}: {stem} has {len(values)} outputs, heads of {head_dim}")
        values = values[order.stored(np.arange(len(values)), len(values), head_dim)]
    return names[0], values
