"""Interface for model definitions: the step's inputs, weights by checkpoint name, KV caches and states."""

from __future__ import annotations

from typing import Protocol

from headrace.ops.tensor_part import DerivedTensor, TensorSlice
from headrace.ops.value import Array, Ints, Value


class Builder(Protocol):
    """A model definition's view of the recorder. Sizes: T tokens, B sequences, E = B + 1, R output rows, P
    pages per sequence, S slots of the KV cache, N slots of recurrent states (one per running sequence).
    """

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
        """A checkpoint tensor by name, or a slice of it. Repeated calls return the same value.

        With `stack`, that many tensors of one shape concatenated along their rows; `*` in the name counts
        from 0.
        """
        ...

    def derived(self, name: str, *shape: int, of: DerivedTensor) -> Value:
        """A weight computed from checkpoint tensors at loading. `name` must say what it is, with all that
        decides its numbers, since packed weights are kept under it."""
        ...

    def constant(self, name: str, data: Array | Ints) -> Value:
        """A small float32 array computed from the config, or an int32 table."""
        ...

    def cache(self, layer: int, width: int, value_width: int | None = None) -> Value:
        """The KV cache of a layer: per slot, `width` = kv_heads * head_dim numbers of keys and
        `value_width` numbers of values (None: `width`; 0: values are the first entries of the keys, see
        ops/attend.py).
        """
        ...

    def state(self, layer: int, name: str, width: int) -> Value:
        """A recurrent state of a layer: `width` float32 numbers per running sequence."""
        ...
