"""The beams of one request as sequences: they share full pages, and go on together."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.request import ChoiceFinished, Delta, EngineEvent, Usage
from headrace.engine.sampling.beam_search import BeamSearch, Candidates
from headrace.engine.sampling.sequence_group import GroupChange
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence, State
from headrace.errors import HeadraceError, NumericalError
from headrace.ops.value import Array
from headrace.sampling.sampler import Sampler
from headrace.tokenization.detokenizer import Detokenizer


class BeamGroup:
    """One request's beams, of which all are computed before any goes on.

    A beam's sequence goes on as that of its first child; another child is a new sequence, which finds
    its full pages in the prefix tree and computes what is in the last one again. Where not all beams were
    computed in one step, those that were release their pages, because the others may wait for pages, and
    start again later: so groups cannot block one another.
    """

    def __init__(
        self,
        search: BeamSearch,
        new_sequence: Callable[[tuple[int, ...]], Sequence],
        new_detokenizer: Callable[[], Detokenizer],
    ) -> None:
        self.search = search
        self._new_sequence, self._new_detokenizer = new_sequence, new_detokenizer
        self._sequences: list[Sequence | None] = [new_sequence(())]  # of the live beams
        self._found: list[Candidates | None] = [None]
        self._first = self.sequences[0]
        self.error: HeadraceError | None = None

    @property
    def sequences(self) -> list[Sequence]:
        """Those that are in the scheduler."""
        return [sequence for sequence in self._sequences if sequence is not None]

    def read(self, chunk: ScheduledChunk, sampler: Sampler, logits: Array, first_row: int) -> None:
        """Find the tokens that may follow a beam in its row of `logits`."""
        try:
            found = sampler.top(logits, first_row, self.search.wanted)
        except NumericalError as error:
            self.error = error
        else:
            self._found[self._sequences.index(chunk.sequence)] = found

    def settle(self) -> GroupChange:
        """After a step in which one or several were computed: go on if all are."""
        found = [candidates for candidates in self._found if candidates is not None]
        if len(found) < len(self._found):
            return self._wait()
        change = GroupChange()
        self.search.advance(found)
        old = self._sequences
        live = [] if self.search.over else self.search.live
        self._sequences = [self._sequence_of(old, beam.parent, beam.tokens) for beam in live]
        self._found = [None] * len(self._sequences)
        change.ended = [sequence for sequence in old if sequence is not None]
        change.begun = [sequence for sequence in self.sequences if sequence.state is not State.RUNNING]
        if self.search.over:
            change.events = self._results()
        return change

    def _sequence_of(self, old: list[Sequence | None], parent: int, tokens: tuple[int, ...]) -> Sequence:
        """The parent's sequence for its first child, which removes it from `old`; else a new one."""
        sequence, old[parent] = old[parent], None
        if sequence is None:
            return self._new_sequence(tokens)
        sequence.tokens.append(tokens[-1])
        return sequence

    def _wait(self) -> GroupChange:
        """Those that were computed end; when the others are, all go on as new sequences."""
        change = GroupChange()
        for index, sequence in enumerate(self._sequences):
            if sequence is not None and self._found[index] is not None:
                change.ended.append(sequence)
                self._sequences[index] = None
        return change

    def _results(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        for index, (score, beam) in enumerate(self.search.finished):
            last = beam.tokens[-1]
            stopped = last in self.search.stop_ids
            detokenizer = self._new_detokenizer()
            text = "".join(map(detokenizer.push, beam.tokens[:-1] if stopped else beam.tokens))
            events.append(Delta(index, text + detokenizer.flush(), beam.tokens, beam.logprobs))
            reason = "stop" if stopped else "length"
            events.append(ChoiceFinished(index, reason, last if stopped else None, score))
        return events

    def usage(self) -> Usage:
        """Tokens of the beams that are returned."""
        generated = sum(len(beam.tokens) for _, beam in self.search.finished)
        first = self._first
        return Usage(first.prompt_length, generated, first.cached_tokens, first.cache_miss_reason)
