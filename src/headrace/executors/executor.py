"""Interface between the engine and all executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from headrace._native import MultiStepResult, Signal, SuffixAutomaton
from headrace.executors.adapters import Adapter
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.sampling.sampler import Sampler, SamplerState


class ExecutorLimits(Struct, frozen=True, kw_only=True):
    """Limits that an executor is built for: the largest step; the KV memory, `page_count` pages of
    `page_tokens` slots in every layer; and recurrent states for `state_slots` sequences (0 if the
    program has none).
    """

    max_tokens: int
    max_rows: int
    page_count: int
    page_tokens: int
    state_slots: int = 0


class Executor(Protocol):
    """Runs a program. Its KV caches and recurrent states persist between steps."""

    capacity: ExecutorLimits

    @property
    def adapter_bytes(self) -> int:
        """Bytes of a number in an adapter."""
        ...

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """Put an adapter into a slot, for steps whose sequences name it, or empty the slot."""
        ...

    def run(self, step: Step) -> Array:
        """Logits [R, V] of the step's rows, float32; the array is valid (and writable) until the next run."""
        ...


class DraftPlan(Struct, frozen=True):
    """Token histories for prompt-lookup drafting in native code, one per sequence (None: no drafting); they
    grow with the sampled tokens. If the last tokens of a history occurred earlier in it, the next step
    verifies the first depths[b * MATCH_KINDS + match_kind] tokens that followed them there. A step has
    at most `room` tokens.
    """

    texts: Sequence[SuffixAutomaton | None] = ()
    depths: Sequence[int] = ()
    room: int = 0


NO_DRAFTS = DraftPlan()


@runtime_checkable
class MultiStepExecutor(Executor, Protocol):
    """An executor that also samples, so that it can run several steps in one call."""

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
        """Run a step with one row of logits per sequence, then up to `steps - 1` more.

        The further steps contain the sampled and drafted tokens. Stops early when all sequences have ended,
        when `signal` is set, after `seconds` (0: no limit), or when a sequence has used up its
        `lookahead_tokens` (None: steps - 1), the tokens for which its block tables have pages beyond those
        of the first step.

        Sampled tokens are appended to `rows`; a negative token is an error number (Sampler.error).
        """
        ...
