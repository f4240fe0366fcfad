"""Per-step inputs of a program, as integer arrays."""

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
    """One ragged step: any mix of prefill, prefill chunks, decode and verification. All arrays are int32.

    tokens[T], positions[T] and slots[T] (page * page size + offset) are aligned. Sequence b has rows
    query_starts[b] .. query_starts[b + 1], lengths[b] keys after this step's writes, KV pages
    block_tables[b] and recurrent states state_slots[b]; the states start from zeros if all of its keys are
    new.
    Logits are computed for rows[R] (indices into T). `types` is the segment of a text pair that each token
    belongs to; None: all tokens belong to the first. adapters[b] is the slot of sequence b's adapter, -1 for
    none; None: no sequence has one.
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
    adapters: Ints | None = None

    @property
    def token_types(self) -> Ints:
        """Segment of a text pair for each token, [T]."""
        return np.zeros_like(self.tokens) if self.types is None else self.types


def single_step(sequence: Ints, start: int, end: int, rows: Ints, *, page_tokens: int) -> Step:
    """Tokens `start` .. `end` of the one sequence [L] that there is, whose earlier ones are computed, with
    logits for `rows` of them. Its pages are numbered from 0 on."""
    positions = np.arange(start, end, dtype=np.int32)
    return Step(
        tokens=sequence[start:end].astype(np.int32),
        positions=positions,
        slots=positions,
        query_starts=np.array([0, end - start], np.int32),
        lengths=np.array([end], np.int32),
        block_tables=np.arange(-(-len(sequence) // page_tokens), dtype=np.int32)[None, :],
        rows=rows,
        state_slots=np.zeros(1, np.int32),
    )
