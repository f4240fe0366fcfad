"""What varies from step to step: the inputs of a program, as integer arrays."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from headrace.ops.value import Ints

INPUT_SHAPES: dict[str, tuple[str, ...]] = {
    "tokens": ("T",),
    "token_types": ("T",),
    "positions": ("T",),
    "slots": ("T",),
    "query_starts": ("E",),
    "lengths": ("B",),
    "block_tables": ("B", "P"),
    "rows": ("R",),
    "state_slots": ("B",),
}


class Step(Struct, frozen=True):
    """One ragged step: prefill, chunks of it, decode and verification, mixed. All arrays are int32.

    tokens[T], positions[T] and slots[T] (page * page size + offset) belong together; sequence b owns rows
    query_starts[b] .. query_starts[b + 1], has lengths[b] keys once they are written, in the pages of
    block_tables[b], and its recurrent states in state_slots[b]: they start from zeros where all its keys are
    new. Logits are made for rows[R] (indices into T). `types` says of each token which text of a pair it
    belongs to; None: all to the first.
    """

    tokens: Ints
    positions: Ints
    slots: Ints
    query_starts: Ints
    lengths: Ints
    block_tables: Ints
    rows: Ints
    state_slots: Ints
    types: Ints | None = None

    @property
    def token_types(self) -> Ints:
        """Which text of a pair each token belongs to, [T]."""
        return np.zeros_like(self.tokens) if self.types is None else self.types
