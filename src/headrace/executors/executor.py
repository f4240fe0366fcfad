"""What every executor offers to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from headrace._native import MultiStepResult, Signal, SuffixAutomaton
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.sampling.sampler import Sampler, SamplerState


class ExecutorLimits(Struct, frozen=True, kw_only=True):
    """The largest step, the KV memory (`page_count` pages of `page_tokens` slots in every layer), and room
    for the recurrent states of `state_slots` sequences: 0 where the program has none."""

    max_tokens: int
    max_rows: int
    page_count: int
    page_tokens: int
    state_slots: int = 0


class Executor(Protocol):
    """Runs a program. Its KV caches and states persist from step to step."""

    capacity: ExecutorLimits

    def run(self, step: Step) -> Array:
        """Logits [R, V] of the step's rows, float32; the array is valid (and writable) until the next run."""
        ...


class DraftPlan(Struct, frozen=True):
    """Texts that grow with what is drawn, one for each sequence (None: not this one's). Where one ends with
    tokens that stood in it before, depths[b * MATCH_KINDS + its match_kind] of those that followed are
    checked by the next step, which has at most `room` tokens."""

    texts: Sequence[SuffixAutomaton | None] = ()
    depths: Sequence[int] = ()
    room: int = 0


NO_DRAFTS = DraftPlan()


@runtime_checkable
class MultiStepExecutor(Executor, Protocol):
    """An executor that also draws, and so can run several steps in one call."""

    def run_multi_step(
        self,
        step: Step,
        sampler: Sampler,
        rows: Sequence[SamplerState],
        steps: int,
        *,
        lookahead_tokens: int | None = None,
        seconds: float = 0.0,
        guesses: DraftPlan = NO_DRAFTS,
        signal: Signal | None = None,
    ) -> MultiStepResult:
        """A step with one row of logits for each sequence, and up to `steps - 1` more with the tokens drawn
        and guessed, until all have ended, `signal` stops it, so many `seconds` (0: any) have gone by or a
        sequence has no room for another of the `lookahead_tokens` tokens (steps - 1) that its tables have
        pages for beyond those of the step. Tokens are negative numbers of Sampler.error where logits gave
        none; they are appended to the rows."""
        ...
