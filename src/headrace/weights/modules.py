"""modules.json of sentence-transformers: what follows the transformer of a model."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.config_json import Config, boolean, integer, text
from headrace.weights.confined import confined

MODULES = "modules.json"
_MAX_BYTES = 1 << 20
_MAX_MODULES = 16
_ACTS = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


class Module(Struct, frozen=True):
    """A module: the last part of its class's name, and its folder inside the model's."""

    kind: str
    path: str


class Dense(Struct, frozen=True):
    """A linear layer with an activation (ops/act.py, or "none"); its tensors are in the folder `path`."""

    path: str
    inputs: int
    outputs: int
    bias: bool
    act: str


class _Module(msgspec.Struct):
    type: str
    path: str = ""


_MODULES = msgspec.json.Decoder(list[_Module])


def read_modules(folder: Path) -> list[Module]:
    """The modules in order, the transformer first; empty without the file. Raises CorruptFile."""
    path = confined(folder, MODULES)
    if not path.is_file():
        return []
    if path.stat().st_size > _MAX_BYTES:
        raise CorruptFile(f"{MODULES} has more than {_MAX_BYTES:,} bytes, the limit for such a file")
    modules = strict_json.decode(_MODULES, path.read_bytes(), MODULES)
    if len(modules) > _MAX_MODULES:
        raise CorruptFile(f"{MODULES} lists {len(modules):,} modules, at most {_MAX_MODULES} are read")
    return [Module(module.type.rpartition(".")[2], module.path) for module in modules]


def module_config(folder: Path, module: Module) -> Config:
    """The config.json of a module. Raises CorruptFile."""
    name = f"{module.path}/config.json"
    try:
        return strict_json.read_object(confined(folder, name), _MAX_BYTES)
    except FileNotFoundError:
        raise CorruptFile(f"{name[:200]} is missing in {folder.name}: fetch the whole model again") from None


def read_dense(folder: Path) -> tuple[Dense, ...]:
    """The Dense modules of a model in order. Raises CorruptFile, UnsupportedModel."""
    return tuple(_dense(folder, module) for module in read_modules(folder) if module.kind == "Dense")


def _dense(folder: Path, module: Module) -> Dense:
    config = module_config(folder, module)
    named = text(config, "activation_function", "torch.nn.modules.linear.Identity")
    act = _ACTS.get(named.rpartition(".")[2])
    if act is None or boolean(config, "use_residual", False):
        raise UnsupportedModel(
            f"{module.path}: the activation {named:.80} or a residual is not supported; known activations:"
            f" {', '.join(_ACTS)}"
        )
    return Dense(
        path=module.path,
        inputs=integer(config, "in_features"),
        outputs=integer(config, "out_features"),
        bias=boolean(config, "bias", True),
        act=act,
    )
