"""What every executor offers to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace._native import Signal, SuffixAutomaton
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.sample.sampler import RowState, Sampler


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


@runtime_checkable
class RunsSeveral(Executor, Protocol):
    """An executor that also draws, and so can run several steps in one call."""

    def run_several(
        self,
        step: Step,
        sampler: Sampler,
        rows: Sequence[RowState],
        steps: int,
        signal: Signal | None = None,
        texts: Sequence[SuffixAutomaton | None] = (),
        least: int = 0,
    ) -> list[int]:
        """A step with one row of logits for each sequence, and up to `steps - 1` more with the tokens drawn,
        until all have ended, `signal` stops it or one of the `texts`, which take what is drawn, ends with
        `least` tokens that stood in it before: tokens [at most steps, B], flat, and negative numbers of
        Sampler.error from where logits gave none. The tokens are appended to the rows."""
        ...
