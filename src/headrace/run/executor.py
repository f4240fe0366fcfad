"""What every executor offers to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.ops.value import Array
from headrace.program.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest step, the KV memory (`page_count` pages of `page_tokens` slots in every layer), and room
    for the recurrent states of `state_slots` sequences: 0 where the program has none."""

    max_tokens: int
    max_rows: int
    page_count: int
    page_tokens: int
    state_slots: int = 0


class Executor(Protocol):
    """Runs a program. Its KV caches and states persist from step to step."""

    capacity: Capacity

    def run(self, step: Step) -> Array:
        """Logits [R, V] of the step's rows, float32; the array is valid (and writable) until the next run."""
        ...
