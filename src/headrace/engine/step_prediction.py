"""The steps that a request would take part in, which is not computed."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.engine.call_times import CallTimes, kind_of_work
from headrace.engine.pacing import Pacing
from headrace.engine.request import RequestFinished, Timing, Usage
from headrace.engine.request_state import RequestState
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence
from headrace.engine.step_share import ShareKind, StepShare
from headrace.engine.step_times import StepBound, StepWork, attended

MAX_CHUNKS = 64
"""So many steps of a prompt are told apart; the last one stands for those that follow."""


class StepPredictor:
    """Predicts from what runs now and what steps took until now. For the loop's thread alone."""

    def __init__(
        self, scheduler: Scheduler, pacing: Pacing, calls: CallTimes, bound: StepBound, max_batch_tokens: int
    ) -> None:
        self._scheduler, self._pacing, self._calls = scheduler, pacing, calls
        self._bound, self._most = bound, max_batch_tokens

    def finished(self, state: RequestState) -> RequestFinished:
        """What the last event of the request would be; its shares have `predicted_s` alone. An answer is as
        long as `max_tokens` allows; times are 0 where nothing is known."""
        request = state.request
        sequence = state.choices[0].sequence if state.choices else None
        prompt = len(request.prompt)
        cached, reason = (0, None) if sequence is None else self._scheduler.would_match(sequence)
        queue_s = self._queue_s(sequence)
        shares = list(self._prefill(cached, prompt - cached, queue_s))
        tokens = 0 if sequence is None else sequence.max_length - prompt
        first_s = shares[-1].end_s if shares else queue_s
        if tokens > 1 and sequence is not None:
            shares.append(self._decode(prompt, tokens - 1, len(state.choices), first_s))
        total_s = shares[-1].end_s if shares else queue_s
        usage = Usage(prompt, tokens * len(state.choices), cached, reason)
        return RequestFinished(usage, Timing(queue_s, first_s, total_s), 0, tuple(shares))

    def _streams(self) -> tuple[int, int]:
        """How many sequences generate, and the tokens that they attend to."""
        streams = [one for one in self._scheduler.running if one.pending == 1]
        return len(streams), sum(one.computed + 1 for one in streams)

    def _step_tokens(self) -> int:
        running = self._scheduler.running
        return self._pacing.prefill_tokens(running, waited_s=0.0, contended=False, most=self._most)

    def _queue_s(self, sequence: Sequence | None) -> float:
        """Until the first step: the prompts before it are read in steps of their own."""
        if sequence is None:
            return 0.0
        ahead = sum(one.pending for one in self._scheduler.running if one.pending > 1)
        waiting = [one for one in self._scheduler.waiting if one.priority <= sequence.priority]
        ahead += sum(one.pending for one in waiting)
        return sum(share.predicted_s for share in self._prefill(0, ahead, 0.0))

    def _prefill(self, start: int, tokens: int, at_s: float) -> Iterator[StepShare]:
        streams, seen = self._streams()
        most = self._step_tokens()
        for number in range(MAX_CHUNKS):
            if tokens <= 0:
                return
            steps = 1 if number < MAX_CHUNKS - 1 else -(-tokens // most)
            count = min(tokens, most * steps)
            work = StepWork(count / steps, streams, seen + attended(start, count) / steps)
            seconds = steps * self._seconds(work)
            yield _share("prefill", at_s, seconds, steps, count, steps * (streams + 1))
            start, tokens, at_s = start + count, tokens - count, at_s + seconds

    def _seconds(self, work: StepWork, *, is_long: bool = False) -> float:
        known_s = self._pacing.predicted_s(work) * self._calls.ratio(kind_of_work(work, is_long=is_long))
        return known_s or self._bound.seconds(work)

    def _decode(self, prompt: int, steps: int, choices: int, at_s: float) -> StepShare:
        streams, seen = self._streams()
        rows = streams + choices
        work = StepWork(0, rows, seen + choices * (prompt + steps / 2))
        seconds = steps * self._seconds(work, is_long=steps > 1)
        return _share("decode", at_s, seconds, steps, steps * choices, steps * rows)


def _share(kind: ShareKind, at_s: float, seconds: float, steps: int, tokens: int, rows: int) -> StepShare:
    return StepShare(
        kind=kind,
        start_s=at_s,
        end_s=at_s + seconds,
        steps=steps,
        seconds=0.0,
        run_s=0.0,
        propose_s=0.0,
        predicted_s=seconds,
        tokens=tokens,
        rows=rows,
        batch_tokens=tokens,
    )
