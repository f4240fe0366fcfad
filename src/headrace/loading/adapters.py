"""Adapters of a planned model: read their files and fit them to its program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile, ModelNotFound, UnsupportedModel
from headrace.executors.adapters import Adapter
from headrace.loading.planned_model import PlannedModel
from headrace.program.program import Instruction, Program
from headrace.weights.adapters.adapter_file import AdapterFile, LoraMatrices
from headrace.weights.adapters.gguf_adapter import read_gguf_adapter
from headrace.weights.adapters.peft import CONFIG, WEIGHTS, read_peft


class FittedAdapter(Struct, frozen=True, eq=False):
    """An adapter for one program, and the digest of what its files hold."""

    adapter: Adapter
    digest: str
    rank: int


class AdapterFitter(Struct, frozen=True, eq=False):
    """Reads adapters for one model. Holds none of its weights."""

    name: str
    program: Program
    head_dim: int

    def __call__(self, path: Path) -> FittedAdapter:
        """ModelNotFound, CorruptFile, UnsupportedModel."""
        file = read_adapter(path, self.head_dim)
        matrices = _fit(file, self.program, self.name)
        rank = max(pair.a.shape[0] for pair in matrices.values())
        return FittedAdapter(Adapter(matrices), file.digest, rank)


def adapter_fitter(prepared: PlannedModel) -> AdapterFitter:
    """The reader of a planned model's adapters."""
    head_dim = getattr(prepared.model.config, "head_dim", 0)
    return AdapterFitter(prepared.name, prepared.program, head_dim)


def read_adapter(path: Path, head_dim: int) -> AdapterFile:
    """What the files of an adapter hold: a folder of PEFT, or a GGUF file."""
    if path.is_dir():
        return read_peft(path.resolve())
    if path.suffix == ".gguf" and path.is_file():
        return read_gguf_adapter(path, head_dim)
    raise ModelNotFound(f"there is no adapter at {str(path)!r}: give a folder of PEFT, or a GGUF adapter")


def stored_bytes(path: Path) -> int:
    """The size of an adapter's weights on the disk; 0 where there is none."""
    file = path / WEIGHTS if path.is_dir() else path
    return file.stat().st_size if file.is_file() else 0


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter, or the path is a file that might be one."""
    return (path / CONFIG).is_file() if path.is_dir() else path.suffix == ".gguf" and path.is_file()


def _fit(file: AdapterFile, program: Program, model: str) -> dict[str, LoraMatrices]:
    linears: dict[str, list[Instruction]] = {}
    others: dict[str, str] = {}
    for instruction in program.expanded():
        for index, value in enumerate(instruction.inputs):
            if value is None or value.name not in program.weights:
                continue
            if instruction.name == "linear" and index == 1:
                linears.setdefault(value.name, []).append(instruction)
            elif len(value.shape) == 2:
                others.setdefault(value.name, instruction.name)
    stored: dict[str, list[str]] = {}
    for name in program.weights:
        stored.setdefault(program.parts[name][0] if name in program.parts else name, []).append(name)
    fitted: dict[str, LoraMatrices] = {}
    for tensor, pair in file.matrices.items():
        for name in _weights_of(tensor, stored, model):
            if name not in linears or name in others:
                raise UnsupportedModel(
                    f"the adapter changes {tensor!r}, which {model} uses for '{others.get(name)}': only"
                    " linear layers can have adapters"
                )
            fitted[name] = _part(tensor, pair, name, program, linears[name], model)
    return fitted


def _weights_of(tensor: str, stored: dict[str, list[str]], model: str) -> list[str]:
    """The program's weights that are slices of a tensor, or the tensor itself."""
    if tensor in stored:
        return stored[tensor]
    matching = [name for name in stored if name.endswith(f".{tensor}") or tensor.endswith(f".{name}")]
    if len(matching) != 1:
        raise UnsupportedModel(
            f"the adapter changes {tensor[:200]!r}, which is no linear layer of {model}: use an adapter that"
            " was trained on this model (experts and tied embeddings cannot have adapters)"
        )
    return stored[matching[0]]


def _part(
    tensor: str, pair: LoraMatrices, name: str, program: Program, linears: list[Instruction], model: str
) -> LoraMatrices:
    """The matrices for one weight: the rows of B that its slice has, the inputs of A in its order."""
    outputs, inputs = (int(size) for size in program.weights[name].shape)
    a, b = pair.a, pair.b
    part = program.parts[name][1] if name in program.parts else None
    expected = (outputs, inputs) if part is None else (part.of, part.inputs or inputs)
    if (b.shape[0], a.shape[1]) != expected or (part is not None and part.matrices > 1):
        raise CorruptFile(
            f"the adapter has {b.shape[0]:,} outputs and {a.shape[1]:,} inputs for {tensor[:200]!r}, {model}"
            f" has {expected[0]:,} and {expected[1]:,}: use an adapter that was trained on this model"
        )
    if part is not None:
        a, b = a[:, :inputs], b[part.rows(0, outputs)]
    source = next((ins for ins in program.expanded() if linears[0].inputs[0] in ins.outputs), None)
    if source is not None and source.name == "take_columns":
        order = source.inputs[1]
        if order is not None and order.name.startswith("order"):  # of reorder_inputs
            a = a[:, program.constants[order].astype(np.int64)]
    return LoraMatrices(np.ascontiguousarray(a), np.ascontiguousarray(b), pair.scale)
