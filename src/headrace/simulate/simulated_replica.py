"""One replica of a simulation: the engine's scheduler, prefix tree and pacing, with costs for an executor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

from headrace.bench.serve.trace import TraceRequest
from headrace.cluster.cost_model import CostModel, GivenStepTimes
from headrace.cluster.router import Capacity
from headrace.engine.pacing import PaceOptions, Pacing, work_of
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence
from headrace.engine.step_times import StepWork, WidthTimes
from headrace.simulate.trace_tokens import TraceTokens

AGEING_S = 5.0


class SimulatedRequest(Struct, eq=False):
    """One request of the trace and what became of it; times count from the trace's beginning. `reading` is
    its prompt where another replica has read that."""

    number: int
    trace: TraceRequest
    tokens: TraceTokens
    sequence: Sequence
    generated: int = 0
    first_token_s: float = math.nan
    end_s: float = math.nan
    reading: SimulatedRequest | None = None


class _Call(Struct, eq=False):
    """Steps of the same sequences, one after another. It begins at `at_s` of the trace."""

    chunks: list[ScheduledChunk]
    work: StepWork
    steps: int
    begin_s: float
    at_s: float


class SimulatedReplica:
    """`submit` and `end_call` say when the present call ends; `end_call` is to be called then.

    Times are those of its machine's clock, apart from `at_s`, which is that of the trace.
    """

    def __init__(
        self,
        costs: CostModel,
        capacity: Capacity,
        page_tokens: int,
        on_first: Callable[[int], None],
        on_end: Callable[[int], None],
        reply_s: float = 0.0,
    ) -> None:
        self.costs, self._capacity, self._reply_s = costs, capacity, reply_s
        self._scheduler = Scheduler(
            page_count=max(1, capacity.kv_tokens // page_tokens),
            max_batch_tokens=capacity.max_batch_tokens,
            max_num_seqs=capacity.max_num_seqs,
            ageing_s=AGEING_S,
            page_tokens=page_tokens,
        )
        self._pacing = Pacing(PaceOptions())
        self._pacing.widths = WidthTimes(GivenStepTimes(costs))
        self._requests: dict[int, SimulatedRequest] = {}
        self._call: _Call | None = None
        self._ended_s = 0.0
        self._on_first, self._on_end = on_first, on_end
        self.busy_s = 0.0
        self.end_s = math.inf
        """When the present call ends."""

    def fits(self, tokens: int) -> bool:
        """Whether a request of so many tokens can ever run."""
        return self._scheduler.can_ever_fit(tokens)

    @property
    def preemptions(self) -> int:
        """So far."""
        return self._scheduler.preemptions

    def hold(self, request: SimulatedRequest) -> int:
        """The pages of its prompt have come from another replica, as far as there is room; the tokens of the
        prompt that are cached now."""
        moved, tokens = self._scheduler.moved, cast("Any", request.tokens)
        reserved = moved.reserve(request.sequence.cache_root, tokens)
        return moved.commit(reserved, len(reserved.pages))

    def submit(self, request: SimulatedRequest, now_s: float, at_s: float) -> None:
        """It arrives now: the present call ends after the step that is running."""
        self._requests[request.number] = request
        self._scheduler.add(request.sequence)
        if self._call is None:
            self._begin(max(now_s, self._ended_s), at_s)
        elif self._call.steps > 1:
            self._call.steps = self._steps_begun(self._call, now_s)
            self.end_s = self._call.begin_s + self._seconds(self._call.work, self._call.steps)

    def end_call(self, at_s: float) -> None:
        """The call's tokens are there; the next one begins."""
        call = self._call
        assert call is not None
        now_s = self.end_s
        self.busy_s += at_s - call.at_s
        ended: list[SimulatedRequest] = []
        for chunk in call.chunks:
            if chunk.samples:
                self._generated(chunk.sequence, call.steps, at_s, ended)
        self._scheduler.advance(call.chunks, call.steps - 1)
        for request in ended:
            self._scheduler.finish(request.sequence)
        self._ended_s = now_s
        self._begin(now_s, at_s)

    def _generated(self, sequence: Sequence, steps: int, at_s: float, ended: list[SimulatedRequest]) -> None:
        request = self._requests[sequence.id]
        if not request.generated:
            request.first_token_s = at_s + self._reply_s
            self._on_first(request.number)
        request.tokens.grow(steps)
        request.generated += steps
        if request.generated >= request.trace.output_tokens:
            request.end_s = at_s + self._reply_s
            ended.append(self._requests.pop(request.number))
            self._on_end(request.number)

    def _begin(self, now_s: float, at_s: float) -> None:
        """Plan the next call, as the engine does."""
        self._call, self.end_s = None, math.inf
        scheduler, most = self._scheduler, self._capacity.max_batch_tokens
        if scheduler.idle:
            return
        running, prefill = scheduler.running, None
        if scheduler.waiting_count or any(sequence.pending > 1 for sequence in running):
            places = self._capacity.max_num_seqs - len(running)
            prefill = self._pacing.prefill_tokens(
                running,
                admissible=min(scheduler.waiting_count, places),
                waited_s=0.0,
                contended=False,
                most=most,
            )
        chunks = scheduler.schedule(prefill)
        if not chunks:
            raise AssertionError("a scheduler with work plans a step")
        wanted = min(self._more_steps(chunk.sequence) for chunk in chunks)
        steps = 1 + max(0, scheduler.repeatable(chunks, wanted)) if wanted > 0 else 1
        self._call = _Call(chunks, work_of(chunks), steps, now_s, at_s)
        self.end_s = now_s + self._seconds(self._call.work, steps)

    def _more_steps(self, sequence: Sequence) -> int:
        """After the next one; the first token's is a call of its own, so that its time is known."""
        request = self._requests[sequence.id]
        return request.trace.output_tokens - request.generated - 1 if request.generated else 0

    def _seconds(self, work: StepWork, steps: int) -> float:
        """Each step attends to one token more of each row than the one before."""
        more = self.costs.pair_s * work.rows * (steps * (steps - 1) / 2)
        return steps * self.costs.seconds(work) + more

    def _steps_begun(self, call: _Call, now_s: float) -> int:
        """Of the call by now: at least one, and none that would begin later."""
        low, high = 1, call.steps
        while low < high:
            middle = (low + high) // 2
            if call.begin_s + self._seconds(call.work, middle) >= now_s:
                high = middle
            else:
                low = middle + 1
        return low


def simulated_request(number: int, trace: TraceRequest, page_tokens: int) -> SimulatedRequest:
    """A request that has not arrived."""
    tokens = TraceTokens(number, trace.prompt_tokens, trace.blocks, page_tokens)
    sequence = Sequence(
        id=number,
        request_id=number,
        tokens=cast("Any", tokens),
        prompt_length=trace.prompt_tokens,
        max_length=trace.prompt_tokens + trace.output_tokens,
        arrival_s=trace.at_s,
    )
    return SimulatedRequest(number, trace, tokens, sequence)
