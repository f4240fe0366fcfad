"""Find the file of a `model_type`. The file name is the registry."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.models.architectures import check_architecture
from headrace.models.config_classes import complete
from headrace.models.heads.find import find_head
from headrace.models.heads.layers import HeadDefinition
from headrace.models.rope import CONTEXT_IN_USE
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, text
from headrace.weights.head import Head
from headrace.weights.modules import Dense
from headrace.weights.pooling import PoolingKind


class ModelConfig(Protocol):
    """Properties that every model config has. `context` is the maximum sequence length in tokens;
    `kv_heads` is 0 for models without attention.
    """

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


class Model(Struct, frozen=True, eq=False):
    """An architecture with its config. With `pooling` it is an encoder: the output rows are each text's
    last token for `mean`, `max` and `last`, its first for `cls`, all tokens for `none`. With a `head` these
    are what the head makes of them.
    """

    model_type: str
    config: ModelConfig
    _module: object
    pooling: PoolingKind | None = None
    head: Head | None = None
    _rows: HeadDefinition | None = None

    def define(self, builder: Builder) -> Value:
        """The definition in ops: logits [R, V], pooled states [R, hidden], or rows of the head."""
        module: Any = self._module
        if self._rows is None:
            return module.define(builder, self.config)
        config: Any = self.config
        return self._rows.define(builder, config, module.encode(builder, config))


def known_model_types() -> list[str]:
    """All supported model_types."""
    return [name for name in _files() if _is_model(_module(name))]


def encoder_types() -> list[str]:
    """Model types that can run as encoders."""
    return [name for name in known_model_types() if hasattr(_module(name), "encode")]


def find_model(
    config: Config,
    *,
    context: int | None = None,
    pooling: PoolingKind | None = None,
    head: Head | None = None,
    dense: tuple[Dense, ...] = (),
) -> Model:
    """The model for a config.json, loaded with `context` tokens (None: the config's own), with a `head` or
    with Dense modules after the pooling.

    It is an encoder if it has a head, if `pooling` is given, if the config says that the model is not causal,
    or if the architecture has no decoder; the default pooling is then the mean, as in sentence-transformers.

    Raises UnsupportedModel, naming the model_type, the nearest match and all supported ones.
    """
    model_type = text(config, "model_type")
    if model_type not in _files() or not _is_model(_module(model_type)):
        known = known_model_types()  # imports every model file, so it runs only for unknown types
        nearest = difflib.get_close_matches(model_type[:60], known, 1, cutoff=0)[0]
        raise UnsupportedModel(
            f"model_type '{model_type:.60}' is not supported; the nearest that is: '{nearest}'; "
            f"known: {', '.join(known)}"
        )
    module = _module(model_type)
    config = complete(config)
    if context is not None:
        config = config | {CONTEXT_IN_USE: context}
    both_ways = _attends_both_ways(config, model_type)
    if pooling is None and (both_ways or not hasattr(module, "define")):
        pooling = "mean"
    encodes = pooling is not None or head is not None
    if encodes and not hasattr(module, "encode"):
        asked = f"pooling '{pooling}'" if head is None else f"head '{head.kind}'"
        raise UnsupportedModel(
            f"model_type '{model_type:.60}' is not supported as an encoder ({asked}); those "
            f"that are: {', '.join(encoder_types())}"
        )
    if head is None or head.kind in ("spans", "schema"):
        check_architecture(config, encodes=encodes)
    if not encodes:
        return Model(model_type, module.read_config(config), module)
    read: ModelConfig = module.read_config(config)
    rows = find_head(config, model_type, read.hidden, head, pooling or "mean", dense)
    return Model(model_type, read, module, rows.pooling, head, rows)


def _attends_both_ways(config: Config, model_type: str) -> bool:
    """Whether the config says that the model is not causal, in one of two fields."""
    both_ways = boolean(config, "use_bidirectional_attention", False)
    if both_ways and model_type != "gemma3_text":
        raise UnsupportedModel("config.json: use_bidirectional_attention is supported for gemma3_text only")
    return both_ways or not boolean(config, "is_causal", True)


def _files() -> list[str]:
    return [info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])]


def _is_model(module: ModuleType) -> bool:
    return hasattr(module, "read_config") and (hasattr(module, "define") or hasattr(module, "encode"))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"headrace.models.{name}")
