"""What a model definition is given: the step's inputs, weights by checkpoint name, KV caches and states."""

from __future__ import annotations

from typing import Protocol

from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Array, Value


class Builder(Protocol):
    """The model's view of a recorder. T tokens, B sequences, R rows, P pages; E is B + 1, S slots.

    N is the slots of recurrent states, one for each running sequence."""

    tokens: Value  # T
    token_types: Value  # T
    positions: Value  # T
    slots: Value  # T
    query_starts: Value  # E
    lengths: Value  # B
    block_tables: Value  # B P
    rows: Value  # R
    state_slots: Value  # B

    def weight(self, name: str, *shape: int, part: TensorSlice | None = None, stack: int = 0) -> Value:
        """A checkpoint tensor by name, or a part of it; asking twice gives the same value (tied weights).

        With `stack` that many tensors of one shape, one below the other: `*` in the name counts them from 0.
        """
        ...

    def constant(self, name: str, data: Array) -> Value:
        """A small float32 array computed from the config."""
        ...

    def cache(self, layer: int, width: int, value_width: int | None = None) -> Value:
        """The KV cache of a layer: `width` = kv_heads * head_dim numbers of keys in each slot, and as many of
        values, or `value_width`: with 0 the values are the first entries of the keys (ops/attend.py)."""
        ...

    def state(self, layer: int, name: str, width: int) -> Value:
        """A recurrent state of a layer: `width` float32 numbers for each running sequence."""
        ...
