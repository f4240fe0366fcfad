"""The loop of a model that generates: plan a step, execute it, commit what it brought."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

from headrace.engine.active_requests import ActiveRequests
from headrace.engine.adapters import AdapterInfo, AdapterReader, AdapterSlots
from headrace.engine.admission import Admission
from headrace.engine.call_times import CallTimes, drafted_work, kind_of
from headrace.engine.client import EngineLimits, EngineStatus
from headrace.engine.distrust import distrust
from headrace.engine.event_delivery import deliver
from headrace.engine.multi_step import MAX_LOOKAHEAD_TOKENS, MultiStep
from headrace.engine.pacing import Pacing, work_of
from headrace.engine.page_moves import PageMoves
from headrace.engine.request import EngineRequest, EventCallback, RequestHandle
from headrace.engine.request_builder import RequestBuilder
from headrace.engine.request_queue import CancelRequest, PauseRequest, RequestQueue
from headrace.engine.request_state import RequestState
from headrace.engine.request_trace import StepSums, totals
from headrace.engine.row_readers import advance_group, read_rows
from headrace.engine.sampling.constraints import Constraints
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.sampling.token_sampling import TokenSampling, sample_slots
from headrace.engine.scheduler.batch_builder import BatchBuilder
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.speculative.controller import SpeculationController
from headrace.engine.speculative.step_cost_model import StepTiming
from headrace.engine.step_clock import StepClock
from headrace.engine.step_plan import DRAFTED, StepPlan, StepResult
from headrace.engine.step_prediction import StepPredictor
from headrace.engine.submissions import submitted, submitted_after
from headrace.engine.turns import BATCH_PRIORITY, NoTurns, Turns, joined
from headrace.engine.validation import validate_request
from headrace.executors.executor import NO_DRAFTS, DraftPlan, Executor, ExecutorLimits
from headrace.grammar.matcher import SharedGrammar
from headrace.sampling.sampler import Sampler
from headrace.tokenization.tokenizer import Tokenizer


class Engine:
    """Runs requests on one thread of its own.

    `submit`, `status`, `cancel` and `pause` may be called from any thread.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        tokenizer: Tokenizer,
        limits: EngineLimits,
        *,
        speculation: SpeculationController | None = None,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
        read_adapter: AdapterReader | None = None,
    ) -> None:
        self.limits = limits
        self._turns, self._pacing, self._calls = turns or NoTurns(), Pacing(limits.pace), CallTimes()
        self._capacity, self._sampler, self._clock = executor.capacity, sampler, clock
        self._max_length = min(limits.context_length, self._capacity.page_count * self._capacity.page_tokens)
        self._scheduler, self._speculation = _scheduler(self._capacity, limits), speculation
        self._batches = BatchBuilder(context=self._max_length, page_tokens=self._capacity.page_tokens)
        recurrent = self._capacity.state_slots > 0  # its states cannot compute a token again
        self._constraints = Constraints(tokenizer, sampler.vocabulary, waits=recurrent)
        self._sampling = TokenSampling(sampler, self._constraints)
        self._multi_step = MultiStep(executor, sampler)
        self._builder = RequestBuilder(tokenizer, sampler.vocabulary, self._constraints, self._max_length)
        self._queue: RequestQueue[RequestState] = RequestQueue(limits, self._multi_step.interrupt)
        self._adapters = AdapterSlots(executor, read_adapter, self._queue.adapters_in_use)
        self._active = ActiveRequests(
            *(self._queue, self._scheduler, self._batches, speculation, self._pacing, limits.bound)
        )
        self.page_moves = PageMoves(executor, self._scheduler, self._queue, self._active)
        self._admission = Admission(
            *(self._queue, self._active, self._scheduler, clock, self._pacing),
            StepPredictor(
                self._scheduler, self._pacing, self._calls, limits.bound, self._capacity.max_tokens
            ),
            self._capacity.max_tokens,
        )
        self._timer, self._sums, self._single_steps = StepClock(clock), StepSums(), 0
        # The thread alone holds the executor, so that its memory is free when the loop has ended.
        self._thread = threading.Thread(
            target=self._run, args=(executor,), name="headrace-engine", daemon=True
        )
        self._thread.start()

    # -- from any thread ------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """Queue a request; `sink` gets its events. Raises a typed error before anything is computed."""
        self._validate(request)
        constraint = request.constraint
        grammar = None if constraint is None else self._constraints.compile(constraint).result()
        return self._accept(request, sink, grammar)

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """As `submit`, but does not wait while a grammar is compiled. Raises what is refused before that."""
        self._validate(request)
        if request.constraint is None:
            return submitted(lambda: self._accept(request, sink, None))
        compiled = self._constraints.compile(request.constraint)
        return submitted_after(compiled, lambda grammar: self._accept(request, sink, grammar))

    def status(self) -> EngineStatus:
        """The engine's present state."""
        scheduler = self._scheduler
        return EngineStatus(
            running=scheduler.running_count,
            waiting=scheduler.waiting_count + len(self._queue),
            free_pages=scheduler.free_pages,
            available_pages=scheduler.available_pages,
            page_count=self._capacity.page_count,
            steps=self.steps,
            last_step_s=self._timer.ended_s,
            alive=self._thread.is_alive(),
            preemptions=scheduler.preemptions,
            drafted=0 if self._speculation is None else self._speculation.drafted,
            accepted=0 if self._speculation is None else self._speculation.accepted,
            masks=self._constraints.masks,
            mask_s=self._constraints.mask_s,
            stalled_s=self._timer.stalled_s,
            longest_step_s=self._timer.longest_s,
            waits_for_turn=self._turns.waiting,
            step_costs=self._pacing.times.fitted,
        )

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._single_steps + self._multi_step.ran

    def close(self) -> None:
        """Stop the loop; requests that have not ended fail with EngineStopped."""
        self._queue.close()
        self._thread.join()

    def cancel(self, request_id: str) -> None:
        """End a request within one step; nothing where it has ended."""
        self._queue.put(CancelRequest(request_id))

    def pause(self, request_id: str, paused: bool) -> None:
        """Compute no more of a request, or continue it; nothing where it has ended."""
        self._queue.put(PauseRequest(request_id, paused))

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """See EngineClient."""
        return self._adapters.load(path, expected)

    def unload_adapter(self, digest: str) -> None:
        """See EngineClient."""
        self._adapters.unload(digest)

    def _validate(self, request: EngineRequest) -> None:
        validate_request(
            request,
            vocabulary=self._sampler.vocabulary,
            longest=self._max_length,
            model_longest=self.limits.model_context_length,
            recurrent=self._capacity.state_slots > 0,
        )

    def _accept(
        self, request: EngineRequest, sink: EventCallback, grammar: SharedGrammar | None
    ) -> RequestHandle:
        request_id = self._queue.request_id(request)
        with self._adapters.using(request.adapter) as slot:
            self._queue.accept(self._builder.build(request, request_id, sink, self._clock(), grammar, slot))
        return RequestHandle(request_id, self.cancel, self.pause)

    # -- on the engine's thread -----------------------------------------------------------------------

    def _run(self, executor: Executor) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._queue.serving())
            stack.enter_context(closing(self.page_moves))
            stack.enter_context(closing(self._constraints))
            stack.enter_context(joined(self._turns))
            if self._speculation is not None:
                stack.enter_context(closing(self._speculation))
            while self._receive():
                self._step(executor)

    def _receive(self) -> bool:
        """Apply what has arrived, waiting while there is nothing to compute; False to stop."""
        self._multi_step.listen()
        if self._adapters.retiring:
            self._adapters.free()
        idle = self._scheduler.idle
        self._timer.wait(idle=idle)
        return self._admission.receive(idle=idle)

    def _step(self, executor: Executor) -> None:
        ask = self._pacing.ask(self._scheduler.candidates, self._timer.ended_s)
        self._timer.begin(self._turns.begin(ask))
        self._pacing.widths.use(self._turns.width)
        plan = result = None
        try:
            speculation = self._propose_drafts()
            plan = self._schedule(speculation)
            if plan is not None:
                result = self._execute(executor, plan)
        finally:  # the others may compute while this loop sends its events
            self._turns.end(again=plan is not None)
        if plan is not None and result is not None:
            self._commit(plan, result, speculation)
        else:
            self.page_moves.wait()

    def _propose_drafts(self) -> SpeculationController | None:
        """Speculation, where it takes part in this step."""
        speculation = self._speculation
        if speculation is None or speculation.is_asleep(self.steps):
            return None
        choices = self._active.choices.values()
        several = not self._active.groups and self._multi_step.expected(choices)
        self._timer.propose(speculation.propose, choices, self.steps, several=several)
        return speculation

    def _schedule(self, speculation: SpeculationController | None) -> StepPlan | None:
        """Plan the next step; None where there is nothing to compute."""
        scheduler, now_s = self._scheduler, self._timer.began_s
        holds = self._pacing.holds_batch(scheduler.candidates, now_s)
        chunks = scheduler.schedule(self._prefill_tokens(holds), holds_batch=holds)
        if (
            holds and not chunks
        ):  # what is more urgent cannot run: batch ends some day, and gives its place back
            chunks = scheduler.schedule(self._prefill_tokens(False))
        if not chunks:
            return None
        slots = sample_slots(chunks, self._active.choices)
        max_steps, lookahead_tokens, drafts = self._call_length(chunks, slots, speculation)
        step = self._batches.build(chunks, lookahead_tokens=lookahead_tokens)
        work = work_of(chunks)
        predicted_s = self._pacing.predicted_s(work)
        plan = StepPlan(chunks, slots, step, max_steps, lookahead_tokens, drafts, work, predicted_s)
        plan.kind = kind_of(plan)  # before its drafts are dropped
        return plan

    def _prefill_tokens(self, holds_batch: bool) -> int:
        """Most tokens of prompts in the next step."""
        running, most = self._scheduler.running, self._capacity.max_tokens
        if holds_batch:
            running = tuple(one for one in running if one.priority < BATCH_PRIORITY)
        waited_s = self._timer.began_s - self._timer.ended_s
        return self._pacing.prefill_tokens(
            running,
            admissible=min(self._scheduler.waiting_count, self.limits.max_num_seqs - len(running)),
            waited_s=waited_s,
            contended=self._turns.contended,
            most=most,
            now_s=self._timer.began_s,
        )

    def _call_length(
        self, chunks: list[ScheduledChunk], slots: list[SampleSlot], speculation: SpeculationController | None
    ) -> tuple[int, int, DraftPlan]:
        """The last fields of the plan: drafts that were set for a single step exclude a call of several."""
        steps, drafts = self._multi_step.steps(slots, len(chunks)), NO_DRAFTS
        if speculation is not None and steps > 0:
            steps = min(steps, speculation.max_steps)
            drafts = speculation.plan(slots)
        if steps < 2 and not drafts.texts:
            return 0, 0, NO_DRAFTS
        wanted = MAX_LOOKAHEAD_TOKENS if any(drafts.depths) else steps - 1
        lookahead_tokens = self._scheduler.repeatable(chunks, wanted)
        if lookahead_tokens < 0:
            return 0, 0, NO_DRAFTS
        return min(steps, lookahead_tokens + 1), lookahead_tokens, drafts

    def _execute(self, executor: Executor, plan: StepPlan) -> StepResult:
        """Run the plan's step and sample its slots."""
        if plan.max_steps:
            result = StepResult(self._timer.run(self._multi_step.run, executor, plan), {})
            ran = result.multi_step
            if ran is not None and ran.plain_steps == ran.steps:
                self._pacing.learn(plan.work, self._timer.run_s / ran.steps, self._clock())
            plan.drafts = NO_DRAFTS  # a text is released when its choice ends, where the time is measured
            return result
        masks = self._constraints.start([slot.choice for slot in plan.slots])
        logits = self._timer.run(executor.run, plan.step)
        groups = {}
        if self._active.groups or any(chunk.scores for chunk in plan.chunks):
            groups = read_rows(self._active, self._sampler, logits, plan.chunks)
        self._sampling.sample(logits, plan.slots, masks)
        self._single_steps += 1
        self._multi_step.learn(plan.slots, len(plan.chunks), self._timer.run_s)
        now_s = self._clock()
        self._pacing.learn(plan.work, now_s - self._timer.began_s, now_s)
        return StepResult(None, groups)

    def _commit(self, plan: StepPlan, result: StepResult, speculation: SpeculationController | None) -> None:
        """Count what is computed, learn from it, and send its events."""
        put_off = {slot.choice.sequence.id for slot in plan.slots if slot.put_off}
        self._scheduler.advance(plan.chunks, plan.lookahead_tokens, put_off)
        put_off |= distrust(self._scheduler, plan.slots, result.groups.values())
        self._timer.end()
        if speculation is not None and not put_off:
            ran, timer = result.multi_step, self._timer
            steps = 1 if ran is None else ran.steps
            timing = StepTiming(len(plan.step.tokens), steps, timer.propose_s, timer.run_s, timer.loop_s, ran)
            speculation.learn(plan.slots, timing)
        self._trace(plan, result)
        self.page_moves.after_step()
        deliver(self._active, plan.slots, self._timer.ended_s)
        for state in result.groups.values():
            advance_group(self._active, state, self._timer.ended_s)

    def _trace(self, plan: StepPlan, result: StepResult) -> None:
        """Note for each request that it took part."""
        ran = result.multi_step
        steps = 1 if ran is None else ran.steps
        if ran is not None and plan.kind[DRAFTED]:  # how many tokens its steps checked is known by now
            plan.work, plan.kind = drafted_work(plan, ran)
            plan.predicted_s = self._pacing.predicted_s(plan.work)
        predicted_s = plan.predicted_s * self._calls.ratio(plan.kind) or self.limits.bound.seconds(plan.work)
        call = totals(plan.chunks, self._timer, self._sums, steps, predicted_s)
        seconds = (call.after.seconds - self._sums.seconds) / steps
        self._calls.learn(plan.kind, plan.predicted_s, seconds)
        self._sums = call.after
        for chunk in plan.chunks:
            state = self._active.state_of(chunk.sequence)
            if state.scheduled_s is None:
                state.scheduled_s = self._timer.began_s
            state.trace.note(chunk, call)


def _scheduler(capacity: ExecutorLimits, limits: EngineLimits) -> Scheduler:
    return Scheduler(
        page_count=capacity.page_count,
        max_batch_tokens=capacity.max_tokens,
        max_num_seqs=limits.max_num_seqs,
        ageing_s=limits.ageing_s,
        page_tokens=capacity.page_tokens,
        recurrent=capacity.state_slots > 0,
        max_rows=capacity.max_rows,
    )
