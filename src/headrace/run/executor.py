"""What every executor offers to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.ops.value import Array
from headrace.program.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest step and the KV memory: `page_count` pages of `page_tokens` slots in every layer."""

    max_tokens: int
    max_rows: int
    page_count: int
    page_tokens: int


class Executor(Protocol):
    """Runs a program. Its KV caches persist from step to step."""

    capacity: Capacity

    def run(self, step: Step) -> Array:
        """Logits [R, V] of the step's rows, float32; the array is valid (and writable) until the next run."""
        ...
