"""The requests that the loop computes, and the resources of each."""

from __future__ import annotations

from collections.abc import Sequence as PySequence

from msgspec.structs import replace

from headrace.engine.pacing import Pacing
from headrace.engine.request import EngineEvent, RequestFailed, RequestFinished, Usage
from headrace.engine.request_queue import RequestQueue, send
from headrace.engine.request_state import ChoiceState, RequestState
from headrace.engine.scheduler.batch_builder import BatchBuilder
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence
from headrace.engine.speculative.controller import SpeculationController
from headrace.engine.step_share import TokenCosts
from headrace.engine.step_times import StepBound
from headrace.errors import HeadraceError


class ActiveRequests:
    """Gives each request its sequences in the scheduler, and releases its resources when it ends: pages,
    page rows, drafts. For the loop's thread alone."""

    def __init__(
        self,
        queue: RequestQueue[RequestState],
        scheduler: Scheduler,
        builder: BatchBuilder,
        speculation: SpeculationController | None,
        pacing: Pacing,
        bound: StepBound,
    ) -> None:
        self.choices: dict[int, ChoiceState] = {}
        """By sequence id."""
        self.groups: dict[int, RequestState] = {}
        """By sequence id: the requests that have groups of sequences instead of choices."""
        self._queue, self._scheduler = queue, scheduler
        self._builder, self._speculation, self._pacing = builder, speculation, pacing
        self._bound = bound

    def find(self, request_id: str) -> RequestState | None:
        """The request, None where it has ended."""
        return self._queue.active.get(request_id)

    def state_of(self, sequence: Sequence) -> RequestState:
        """The request that a sequence belongs to."""
        choice = self.choices.get(sequence.id)
        return self.groups[sequence.id] if choice is None else choice.request_state

    def add(self, state: RequestState) -> None:
        """Queue the sequences of a request that has arrived."""
        for choice in state.choices:
            self.choices[choice.sequence.id] = choice
            self._scheduler.add(choice.sequence)
        if self._speculation is not None:
            self._speculation.arrive(state.choices)
        if state.group is not None:
            self.add_sequences(state, state.group.sequences)

    def add_sequences(self, state: RequestState, sequences: PySequence[Sequence]) -> None:
        """Queue sequences of a request's group."""
        for sequence in sequences:
            self.groups[sequence.id] = state
            self._scheduler.add(sequence)

    def end_sequence(self, sequence: Sequence) -> None:
        """Release the resources of a sequence of a group."""
        del self.groups[sequence.id]
        self._scheduler.finish(sequence)
        self._builder.forget(sequence)

    def release(self, choice: ChoiceState) -> None:
        """Release the resources of a choice that has ended; nothing where that is done."""
        sequence = choice.sequence
        if self.choices.pop(sequence.id, None) is not None:
            self._scheduler.finish(sequence)
            self._builder.forget(sequence)
            if self._speculation is not None:
                self._speculation.forget(choice)

    def end(self, state: RequestState, events: list[EngineEvent]) -> None:
        """The request is over, `events` are its last: release everything, then send them."""
        for choice in state.choices:
            self.release(choice)
        for sequence in state.group.sequences if state.group is not None else ():
            self.end_sequence(sequence)
        self._queue.end(state)
        last = events[-1]
        if isinstance(last, RequestFinished):
            events[-1] = replace(last, costs=self._costs(last.usage))
        send(state, events)

    def _costs(self, usage: Usage) -> TokenCosts:
        """What tokens like those of a request cost now."""
        times, known = self._pacing.times, None if self._speculation is None else self._speculation.costs
        row_s = times.row_seconds(usage.prompt_tokens) if times.any_known else 0.0
        plain_s = known.seconds(1) + known.plain_loop_s if known is not None and known.known else 0.0
        return TokenCosts(row_s, plain_s, self._bound.read_s)

    def fail(self, state: RequestState, error: HeadraceError) -> None:
        """End the request with an error."""
        self.end(state, [RequestFailed(error)])
