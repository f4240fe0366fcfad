"""Find the model file of a `model_type`: the file name is the registry."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import UnsupportedModel
from headrace.models.rope import CONTEXT_IN_USE
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, text


class ModelConfig(Protocol):
    """What every model's config tells; its definition knows the rest. `context` is the longest sequence in
    tokens, `kv_heads` is 0 where there is no attention."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An architecture with its config."""

    model_type: str
    config: ModelConfig
    _module: object

    def define(self, builder: Builder) -> Value:
        """The definition over ops: logits [R, V]."""
        return self._module.define(builder, self.config)  # type: ignore[attr-defined,no-any-return]


def known_model_types() -> list[str]:
    """Every model_type that has a file here."""
    found: list[str] = []
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"headrace.models.{info.name}")
        if hasattr(module, "define") and hasattr(module, "read_config"):
            found.append(info.name)
    return found


def find_model(config: Config, *, context: int | None = None) -> Model:
    """The model of a config.json, to be used with `context` tokens (None: its own); UnsupportedModel names
    the model_type, the nearest and the known ones."""
    model_type = text(config, "model_type")
    known = known_model_types()
    if model_type not in known:
        nearest = difflib.get_close_matches(model_type[:60], known, 1, cutoff=0)[0]
        raise UnsupportedModel(
            f"model_type '{model_type:.60}' is not supported; the nearest that is: '{nearest}'; "
            f"known: {', '.join(known)}"
        )
    module = importlib.import_module(f"headrace.models.{model_type}")
    if context is not None:
        config = config | {CONTEXT_IN_USE: context}
    return Model(model_type, module.read_config(config), module)
