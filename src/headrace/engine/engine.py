"""The only loop: take requests, schedule, run a step, sample, hand out events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from headrace._native import MultiStepResult
from headrace.engine.client import EngineLimits, EngineStatus
from headrace.engine.multi_step import MAX_LOOKAHEAD_TOKENS, MultiStep
from headrace.engine.request import (
    ChoiceFinished,
    EngineEvent,
    EngineRequest,
    EventCallback,
    RequestFailed,
    RequestHandle,
)
from headrace.engine.request_builder import RequestBuilder
from headrace.engine.request_queue import CancelRequest, PauseRequest, RequestQueue, send
from headrace.engine.request_state import ChoiceState, RequestState
from headrace.engine.sampling.constraints import Constraints
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.sampling.token_sampling import TokenSampling, sample_slots
from headrace.engine.scheduler.batch_builder import BatchBuilder
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence
from headrace.engine.speculative.speculation import Speculation
from headrace.engine.speculative.step_cost_model import StepTiming
from headrace.engine.validation import validate_request
from headrace.executors.executor import NO_DRAFTS, DraftPlan, Executor, ExecutorLimits
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.sampling.sampler import Sampler
from headrace.tokenization.tokenizer import Tokenizer


class Engine:
    """Runs requests on one thread of its own.

    `submit` and `RequestHandle.cancel` may be called from any thread.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        tokenizer: Tokenizer,
        limits: EngineLimits,
        *,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._sampler, self._clock = sampler, clock
        capacity = executor.capacity
        self._page_count = capacity.page_count
        self._longest = min(limits.context_length, capacity.page_count * capacity.page_tokens)
        self._recurrent = capacity.state_slots > 0
        self._scheduler = _scheduler(capacity, limits)
        self._speculation = speculation
        self._builder = BatchBuilder(context=self._longest, page_tokens=capacity.page_tokens)
        self._constraints = Constraints(tokenizer, sampler.vocabulary)
        self._drawing = TokenSampling(sampler, self._constraints)
        self._multi_step = MultiStep(executor, sampler)
        self._arrivals = RequestBuilder(tokenizer, sampler.vocabulary, self._constraints, self._longest)
        self._inbox: RequestQueue[RequestState] = RequestQueue(limits, self._multi_step.interrupt)
        self._choices: dict[int, ChoiceState] = {}  # by sequence id; this and the next are the loop's own
        self._beams: dict[int, RequestState] = {}  # by sequence id
        self._ran_s = 0.0  # the executor, in this step
        self._waited = True  # for something to do, before this step
        self._steps, self._last_step_s = 0, clock()  # steps that were calls of their own
        # The thread alone holds the executor, so that its memory is free when the loop has ended.
        self._thread = threading.Thread(
            target=self._run, args=(executor,), name="headrace-engine", daemon=True
        )
        self._thread.start()

    # -- from any thread ------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """Queue a request; `sink` gets its events. Raises a typed error before anything is computed."""
        validate_request(
            request,
            vocabulary=self._sampler.vocabulary,
            longest=self._longest,
            recurrent=self._recurrent,
        )
        request_id = self._inbox.name(request)
        self._inbox.accept(self._arrivals.generation(request, request_id, sink, self._clock()))
        return RequestHandle(request_id, self.cancel, self.pause)

    def status(self) -> EngineStatus:
        """Where the engine stands now."""
        scheduler = self._scheduler
        return EngineStatus(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._inbox),
            free_pages=scheduler.free_pages,
            available_pages=scheduler.available_pages,
            page_count=self._page_count,
            steps=self.steps,
            last_step_s=self._last_step_s,
            alive=self._thread.is_alive(),
            preemptions=scheduler.preemptions,
            drafted=0 if self._speculation is None else self._speculation.drafted,
            accepted=0 if self._speculation is None else self._speculation.accepted,
            masks=self._constraints.masks,
            mask_s=self._constraints.mask_s,
        )

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._steps + self._multi_step.ran

    def close(self) -> None:
        """Stop the loop; requests that have not ended fail with EngineStopped."""
        self._inbox.close()
        self._thread.join()

    def cancel(self, request_id: str) -> None:
        """Stop a request, as its ticket does; nothing where it has ended."""
        self._inbox.tell(CancelRequest(request_id))

    def pause(self, request_id: str, paused: bool) -> None:
        """Compute no more of a request, as its ticket does, or go on; nothing where it has ended."""
        self._inbox.tell(PauseRequest(request_id, paused))

    # -- on the engine's thread -----------------------------------------------------------------------

    def _run(self, executor: Executor) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._inbox.serving())
            stack.enter_context(closing(self._constraints))
            if self._speculation is not None:
                stack.enter_context(closing(self._speculation))
            while self._take_inbox():
                self._step(executor)

    def _take_inbox(self) -> bool:
        """Take what has arrived, waiting while there is nothing to do; False when it is time to stop."""
        self._multi_step.listen()
        self._waited = self._scheduler.idle
        arrived = self._inbox.take(idle=self._waited)
        if arrived is None:
            return False
        for item in arrived:
            if isinstance(item, CancelRequest):
                self._end_early(item.request_id)
            elif isinstance(item, PauseRequest):
                self._take_pause(item)
            else:
                for choice in item.choices:
                    self._choices[choice.sequence.id] = choice
                    self._scheduler.add(choice.sequence)
                if self._speculation is not None:
                    self._speculation.wake_for(item.choices)
                if item.beams is not None:
                    self._begin(item, item.beams.sequences)
        self._check_deadlines()
        return True

    def _step(self, executor: Executor) -> None:
        began_s = start_s = self._clock()
        since_s = 0.0 if self._waited else began_s - self._last_step_s  # handing out, and what takes it
        speculation = self._awake_speculation()
        if speculation is not None:
            choices = self._choices.values()
            several = not self._beams and self._multi_step.expected(choices)
            speculation.propose(choices, several=several)
            start_s = self._clock()
        chunks = self._scheduler.schedule()
        if not chunks:
            return
        turns = sample_slots(chunks, self._choices)
        steps, lookahead_tokens, guesses = self._called(chunks, turns, speculation)
        step = self._builder.build(chunks, lookahead_tokens=lookahead_tokens)
        self._note_scheduled(chunks)
        ran: MultiStepResult | None = None
        if steps:
            run_s, grown = self._clock(), set[str]()
            ran = self._multi_step.run(executor, step, turns, steps, lookahead_tokens, guesses)
            self._ran_s = self._clock() - run_s
        else:
            grown = self._compute(executor, step, chunks, turns)
            self._steps += 1
            self._multi_step.learn(turns, len(chunks), self._ran_s)
        self._scheduler.advance(chunks, lookahead_tokens)
        self._last_step_s = self._clock()
        if speculation is not None:
            looked_s, loop_s = start_s - began_s, self._last_step_s - start_s + since_s - self._ran_s
            spent = StepTiming(len(step.tokens), ran.steps if ran else 1, looked_s, self._ran_s, loop_s, ran)
            speculation.learn(turns, spent)
        guesses = NO_DRAFTS  # so that who ends lets go of its text where that is booked
        self._hand_out(turns)
        for request_id in grown:
            self._grow(self._inbox.active[request_id])

    def _awake_speculation(self) -> Speculation | None:
        """Speculation, where there is anything to ask it before the next step."""
        speculation = self._speculation
        return None if speculation is None or speculation.asleep(self.steps) else speculation

    def _called(
        self, chunks: list[ScheduledChunk], turns: list[SampleSlot], speculation: Speculation | None
    ) -> tuple[int, int, DraftPlan]:
        """How many steps are one call at most (0: this one is none), for how many tokens more of each
        sequence there are pages, and what may be guessed; what is drafted, or to be looked for, comes
        first."""
        steps, guesses = self._multi_step.steps(turns, len(chunks)), NO_DRAFTS
        if speculation is not None and steps > 0:
            steps = min(steps, speculation.rest + 1)
            guesses = speculation.guesses(turns)
        if steps < 2 and not guesses.texts:
            return 0, 0, NO_DRAFTS
        lookahead_tokens = self._scheduler.repeatable(
            chunks, MAX_LOOKAHEAD_TOKENS if any(guesses.depths) else steps - 1
        )
        return (
            (0, 0, NO_DRAFTS)
            if lookahead_tokens < 0
            else (min(steps, lookahead_tokens + 1), lookahead_tokens, guesses)
        )

    def _note_scheduled(self, chunks: list[ScheduledChunk]) -> None:
        now = self._clock()
        for chunk in chunks:
            generation = self._generation(chunk.sequence)
            if generation.scheduled_s is None:
                generation.scheduled_s = now

    def _compute(
        self, executor: Executor, step: Step, chunks: list[ScheduledChunk], turns: list[SampleSlot]
    ) -> set[str]:
        """Run the step and draw for the turns; the requests whose beams grow."""
        masks = self._constraints.start([turn.choice for turn in turns])
        began_s = self._clock()
        logits = executor.run(step)
        self._ran_s = self._clock() - began_s
        scored = any(chunk.scores for chunk in chunks)
        grown = self._read_rows(logits, chunks) if self._beams or scored else set[str]()
        self._drawing.draw(logits, turns, masks)
        return grown

    def _generation(self, sequence: Sequence) -> RequestState:
        choice = self._choices.get(sequence.id)
        return self._beams[sequence.id] if choice is None else choice.generation

    def _read_rows(self, logits: Array, chunks: list[ScheduledChunk]) -> set[str]:
        """Score prompts and find the candidates of beams; the requests whose beams grow."""
        grown: set[str] = set()
        row = 0
        for chunk in chunks:
            choice = self._choices.get(chunk.sequence.id)
            if choice is not None and choice.scores is not None and chunk.scores:
                choice.scores.take(self._sampler, logits, row, chunk.start, chunk.count)
            row += chunk.rows
            if chunk.samples and choice is None:
                generation = self._beams[chunk.sequence.id]
                assert generation.beams is not None
                generation.beams.take(chunk.sequence, self._sampler, logits, row - 1)
                grown.add(generation.request_id)
        return grown

    def _grow(self, generation: RequestState) -> None:
        """Go on with a request's beams, or end it."""
        beams = generation.beams
        assert beams is not None
        generation.first_token_s = generation.first_token_s or self._last_step_s
        if beams.error is not None:
            self._drop(generation)
            send(generation, [RequestFailed(beams.error)])
            return
        change = beams.settle()
        for sequence in change.ended:
            self._end(sequence)
        self._begin(generation, change.begun)
        if change.events:
            self._drop(generation)
            send(generation, [*change.events, generation.finished(self._last_step_s)])

    def _begin(self, generation: RequestState, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._beams[sequence.id] = generation
            self._scheduler.add(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Give back what one of the beams' sequences holds."""
        del self._beams[sequence.id]
        self._scheduler.finish(sequence)
        self._builder.forget(sequence)

    def _hand_out(self, turns: list[SampleSlot]) -> None:
        """Send what the turns brought, and give back what has ended."""
        events: dict[int, tuple[RequestState, list[EngineEvent]]] = {}
        now = self._last_step_s
        for turn in turns:
            generation = turn.choice.generation
            _, ready = events.setdefault(id(generation), (generation, []))
            if generation.first_token_s is None:
                generation.first_token_s = now
            ready += turn.merged()
            if turn.error is not None:
                ready.append(RequestFailed(turn.error))
            if turn.choice.done:
                self._release(turn.choice)
        for generation, ready in events.values():
            taken, ready = len(ready), generation.apply_scaling(ready)
            failed = next((event for event in ready if isinstance(event, RequestFailed)), None)
            if failed is not None:
                ready = ready[: ready.index(failed) + 1]
                self._drop(generation)
            elif generation.done:
                ready.append(generation.finished(now))
                self._drop(generation)
            elif len(ready) > taken:
                self._release_ended(generation)
            send(generation, ready)

    def _end_early(self, request_id: str) -> None:
        """Cancel: every choice that has not ended ends now."""
        generation = self._inbox.active.get(request_id)
        if generation is None:
            return  # it ended before the word arrived
        events: list[EngineEvent] = [
            choice.end("cancelled") for choice in generation.choices if not choice.done
        ]
        if generation.beams is not None:
            events += [ChoiceFinished(index, "cancelled") for index in range(generation.request.params.n)]
        self._drop(generation)
        send(generation, [*events, generation.finished(self._clock())])

    def _take_pause(self, item: PauseRequest) -> None:
        generation = self._inbox.active.get(item.request_id)
        for choice in generation.choices if generation is not None else ():
            if item.paused:
                self._scheduler.pause(choice.sequence)
            else:
                self._scheduler.resume(choice.sequence)

    def _check_deadlines(self) -> None:
        now = self._clock()
        for generation, error in self._inbox.late(now):
            events = generation.expired(error)
            self._drop(generation)
            if not isinstance(events[-1], RequestFailed):
                events.append(generation.finished(now))
            send(generation, events)

    def _release_ended(self, generation: RequestState) -> None:
        for choice in generation.choices:
            if choice.done:
                self._release(choice)

    def _release(self, choice: ChoiceState) -> None:
        """Give back what an ended choice holds."""
        sequence = choice.sequence
        if self._choices.pop(sequence.id, None) is not None:
            self._scheduler.finish(sequence)
            self._builder.forget(sequence)
            if self._speculation is not None:
                self._speculation.forget(choice)

    def _drop(self, generation: RequestState) -> None:
        """The request is over: give back everything and forget it."""
        for choice in generation.choices:
            self._release(choice)
        for sequence in generation.beams.sequences if generation.beams is not None else ():
            self._end(sequence)
        self._inbox.end(generation)


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
