"""One step or call of several steps: what it computes, and what came of it."""

from __future__ import annotations

from msgspec import Struct

from headrace.engine.request_state import RequestState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.step_times import StepWork
from headrace.executors.executor import DraftPlan, MultiStepResult
from headrace.program.step import Step

Kind = tuple[bool, int, int, bool, bool, bool]
"""Of a call: whether prompts are read; powers of two of their tokens and of the rows that generate; whether
it is a call of several steps, has drafts, and a grammar."""
DRAFTED, GRAMMAR = 4, 5  # places in a Kind


class StepPlan(Struct, eq=False):
    """The scheduler's chunks, and where their choices are sampled. With `max_steps` it is one call of the
    executor that runs so many at most, has pages for `lookahead_tokens` more of each sequence and verifies
    `drafts`; 0 is a single step. `work` is what a step computes, `predicted_s` what it is expected to take
    and `kind` that of its call."""

    chunks: list[ScheduledChunk]
    slots: list[SampleSlot]
    step: Step
    max_steps: int
    lookahead_tokens: int
    drafts: DraftPlan
    work: StepWork
    predicted_s: float
    kind: Kind = (False, 0, 0, False, False, False)


class StepResult(Struct, frozen=True, eq=False):
    """`multi_step` is what a call of several steps brought; the tokens are in the slots. `groups` are the
    requests whose groups of sequences were read."""

    multi_step: MultiStepResult | None
    groups: dict[str, RequestState]
