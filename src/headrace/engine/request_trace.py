"""Collects the steps that a request takes part in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.step_clock import StepClock
from headrace.engine.step_share import ShareKind, StepShare

MAX_SHARES = 256
"""So many are kept apart; what follows is counted with the last of its kind."""


class StepTotals(Struct, frozen=True):
    """A call of the executor for all requests: `steps` of it, its times in seconds of the monotonic clock,
    and its size."""

    began_s: float
    ended_s: float
    run_s: float
    propose_s: float
    predicted_s: float
    steps: int
    rows: int
    tokens: int


def totals(chunks: Sequence[ScheduledChunk], timer: StepClock, steps: int, predicted_s: float) -> StepTotals:
    """Of the call that `timer` has ended; `predicted_s` is that of one step."""
    span_s = timer.loop_s + timer.propose_s + timer.run_s
    return StepTotals(
        began_s=timer.ended_s - span_s,
        ended_s=timer.ended_s,
        run_s=timer.run_s,
        propose_s=timer.propose_s,
        predicted_s=predicted_s * steps,
        steps=steps,
        rows=len(chunks) * steps,
        tokens=sum(chunk.length for chunk in chunks) * steps,
    )


class RequestTrace(Struct, eq=False):
    """The steps of one request, which was submitted at `submitted_s`; for the loop alone."""

    submitted_s: float
    shares: list[StepShare] = field(default_factory=list[StepShare])
    seen_right: int = 0
    seen_wrong: int = 0

    def note(self, own: Sequence[ScheduledChunk], step: StepTotals, right: int, wrong: int) -> None:
        """The request took part in a step with its `own` chunks. Of its drafted tokens so many were `right`
        and `wrong` by now."""
        reads_prompt = any(chunk.start < chunk.sequence.prompt_length for chunk in own)
        accepted, rejected = right - self.seen_right, wrong - self.seen_wrong
        self.seen_right, self.seen_wrong = right, wrong
        self.add(
            "prefill" if reads_prompt else "decode",
            step,
            tokens=sum(chunk.length for chunk in own) * step.steps,
            drafted=accepted + rejected,
            accepted=accepted,
        )

    def add(
        self, kind: ShareKind, step: StepTotals, *, tokens: int, drafted: int = 0, accepted: int = 0
    ) -> None:
        """Add `tokens` of a step."""
        share = StepShare(
            kind=kind,
            start_s=step.began_s - self.submitted_s,
            end_s=step.ended_s - self.submitted_s,
            steps=step.steps,
            seconds=step.ended_s - step.began_s,
            run_s=step.run_s,
            propose_s=step.propose_s,
            predicted_s=step.predicted_s,
            tokens=tokens,
            rows=step.rows,
            batch_tokens=step.tokens,
            drafted=drafted,
            accepted=accepted,
        )
        is_full = len(self.shares) >= MAX_SHARES
        last = self.shares[-1] if self.shares else None
        if last is not None and last.kind == kind and (kind == "decode" or is_full):
            self.shares[-1] = last.merged(share)
        elif is_full and (place := self._last_of(kind)) is not None:
            before = self.shares[place]  # it keeps its end: what follows has another kind
            self.shares[place] = replace(before.merged(share), end_s=before.end_s)
        else:
            self.shares.append(share)

    def _last_of(self, kind: ShareKind) -> int | None:
        places = range(len(self.shares) - 1, -1, -1)
        return next((place for place in places if self.shares[place].kind == kind), None)
