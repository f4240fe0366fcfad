"""What heads are made of: pooled rows, linear layers with an activation and a norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.act import act
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.pool import pool
from headrace.ops.value import Value
from headrace.weights.pooling import PoolingKind

T = TypeVar("T")


def by_type(table: Mapping[str, T], model_type: str, does: str) -> T:
    """The entry of a model type, whose names have `_` for `-`. Raises UnsupportedModel with those known."""
    found = table.get(model_type.replace("-", "_"))
    if found is None:
        raise UnsupportedModel(
            f"a model_type '{model_type:.60}' that {does} is not supported; known: {', '.join(table)}"
        )
    return found


class HeadDefinition(Protocol):
    """A head in ops: output rows from hidden states [T, hidden], of which `pooling` says which there are."""

    @property
    def pooling(self) -> PoolingKind: ...

    def define(self, m: Builder, c: DecoderConfig, x: Value) -> Value:
        """The output rows."""
        ...


class HeadLayer(Struct, frozen=True):
    """Linear layer `name` (`size` 0: as its input), activation (of ops/act.py, or "none"), layer norm."""

    name: str
    size: int = 0
    act: str = "none"
    norm: str | None = None
    bias: bool = True

    def define(self, m: Builder, c: DecoderConfig, x: Value) -> Value:
        """What the layer makes of rows x."""
        x = project(m, x, self.name, self.size or int(x.shape[1]), bias=self.bias)
        if self.act != "none":
            x = act(x, kind=self.act)
        return x if self.norm is None else layer_norm(m, c, x, self.norm)


def pooled(m: Builder, x: Value, kind: PoolingKind) -> Value:
    """Rows [R, size] of x [T, size]: of each text the mean or the maximum, or the rows that are asked for."""
    return pool(x, m.query_starts, m.rows, kind=kind) if kind in ("mean", "max") else gather(x, m.rows)


class RowHead(Struct, frozen=True):
    """Pooled or picked rows through layers."""

    pooling: PoolingKind
    layers: tuple[HeadLayer, ...]

    def define(self, m: Builder, c: DecoderConfig, x: Value) -> Value:
        """Rows [R, outputs of the last layer]."""
        x = pooled(m, x, self.pooling)
        for layer in self.layers:
            x = layer.define(m, c, x)
        return x
