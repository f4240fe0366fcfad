"""Collects the steps that a request takes part in, at the cost of one comparison for each of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.step_clock import StepClock
from headrace.engine.step_share import ShareKind, StepShare

MAX_SHARES = 256
"""So many are kept apart; what follows is counted with the last of its kind."""


class StepSums(Struct, frozen=True):
    """Sums over all calls of the executor so far, in the words of StepShare."""

    steps: int = 0
    seconds: float = 0.0
    run_s: float = 0.0
    propose_s: float = 0.0
    predicted_s: float = 0.0
    rows: int = 0
    tokens: int = 0


class StepTotals(Struct, frozen=True):
    """A call of the executor for all requests: its times in seconds of the monotonic clock, and the sums
    `before` and `after` it."""

    began_s: float
    ended_s: float
    before: StepSums
    after: StepSums


def totals(
    chunks: Sequence[ScheduledChunk], timer: StepClock, before: StepSums, steps: int, predicted_s: float
) -> StepTotals:
    """Of the call of so many steps that `timer` has ended; `predicted_s` is that of one of them."""
    span_s = timer.loop_s + timer.propose_s + timer.run_s
    tokens = sum(chunk.length for chunk in chunks)
    after = StepSums(
        before.steps + steps,
        before.seconds + span_s,
        before.run_s + timer.run_s,
        before.propose_s + timer.propose_s,
        before.predicted_s + predicted_s * steps,
        before.rows + len(chunks) * steps,
        before.tokens + tokens * steps,
    )
    return StepTotals(timer.ended_s - span_s, timer.ended_s, before, after)


class _Decoding(Struct, eq=False):
    """Calls in a row in which a request generates: the sums before the first and after the last, and when
    the last one ended. `tokens` are the request's own."""

    began_s: float
    ended_s: float
    first: StepSums
    last: StepSums
    tokens: int


class RequestTrace(Struct, eq=False):
    """The steps of one request, which was submitted at `submitted_s`; for the loop alone."""

    submitted_s: float
    shares: list[StepShare] = field(default_factory=list[StepShare])
    _decoding: _Decoding | None = None
    _noted: StepSums | None = None

    def note(self, chunk: ScheduledChunk, call: StepTotals) -> None:
        """The request took part in a call with this chunk, one of several where it has several choices."""
        tokens = chunk.length * (call.after.steps - call.before.steps)
        reads_prompt = chunk.start < chunk.sequence.prompt_length
        self.add("prefill" if reads_prompt else "decode", call, tokens=tokens)

    def add(self, kind: ShareKind, call: StepTotals, *, tokens: int) -> None:
        """Add `tokens` of a call."""
        now = self._decoding
        if self._noted is call.after and (kind == "decode" or now is None):
            self._same(tokens)
        elif kind != "decode":
            if now is not None and now.last is call.after:  # its other choices generate: it is counted once
                now.last, now.ended_s = call.before, call.began_s
            self._close()
            self._push(kind, call.began_s, call.ended_s, call.before, call.after, tokens)
        elif now is not None and now.last is call.before:
            now.last, now.ended_s = call.after, call.ended_s
            now.tokens += tokens
        else:
            self._close()
            self._decoding = _Decoding(call.began_s, call.ended_s, call.before, call.after, tokens)
        self._noted = call.after

    def finish(self, right: int, wrong: int) -> tuple[StepShare, ...]:
        """All of it, when the request has ended: of its drafted tokens so many were `right` and `wrong`."""
        self._close()
        last = self._last_of("decode")
        if last is not None and right + wrong:
            self.shares[last] = replace(self.shares[last], drafted=right + wrong, accepted=right)
        return tuple(self.shares)

    def _same(self, tokens: int) -> None:
        """More tokens of a call that is noted already."""
        if self._decoding is not None:
            self._decoding.tokens += tokens
        elif self.shares:
            self.shares[-1] = replace(self.shares[-1], tokens=self.shares[-1].tokens + tokens)

    def _close(self) -> None:
        """What was generated in a row is a share."""
        now, self._decoding = self._decoding, None
        if now is not None and now.last is not now.first:
            self._push("decode", now.began_s, now.ended_s, now.first, now.last, now.tokens)

    def _push(
        self, kind: ShareKind, began_s: float, ended_s: float, before: StepSums, after: StepSums, tokens: int
    ) -> None:
        share = StepShare(
            kind=kind,
            start_s=began_s - self.submitted_s,
            end_s=ended_s - self.submitted_s,
            steps=after.steps - before.steps,
            seconds=after.seconds - before.seconds,
            run_s=after.run_s - before.run_s,
            propose_s=after.propose_s - before.propose_s,
            predicted_s=after.predicted_s - before.predicted_s,
            tokens=tokens,
            rows=after.rows - before.rows,
            batch_tokens=after.tokens - before.tokens,
        )
        is_full = len(self.shares) >= MAX_SHARES
        last = self.shares[-1] if self.shares else None
        if last is not None and last.kind == kind and (kind == "decode" or is_full):
            self.shares[-1] = last.merged(share)
        elif is_full and (place := self._last_of(kind)) is not None:
            kept = self.shares[place]  # it keeps its end: what follows has another kind
            self.shares[place] = replace(kept.merged(share), end_s=kept.end_s)
        else:
            self.shares.append(share)

    def _last_of(self, kind: ShareKind) -> int | None:
        places = range(len(self.shares) - 1, -1, -1)
        return next((place for place in places if self.shares[place].kind == kind), None)
