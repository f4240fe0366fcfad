"""One choice in one step: the tokens sampled from its rows of logits, as far as its draft agrees."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from headrace.engine.request import Delta, EngineEvent, TokenLogprob
from headrace.engine.request_state import ChoiceState
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.errors import HeadraceError
from headrace.sampling.sampler import SampleOutput, Sampler


class SampleSlot(Struct, eq=False):
    """A choice that samples tokens from the step's logits; `row` is the next one to sample.

    The rows after the first are those of its draft: each is what plain decoding would have computed if the
    drafted tokens up to it are those that were drawn. So drawing goes on as long as they are, with the
    choice's state as plain decoding has it there, and every token is the one that plain decoding draws.
    """

    choice: ChoiceState
    chunk: ScheduledChunk
    row: int
    events: list[EngineEvent] = field(default_factory=list[EngineEvent])
    error: HeadraceError | None = None
    put_off: bool = False

    def put_off_first(self) -> None:
        """No token is drawn in this step, unless one was already."""
        self.put_off = not self.events
        self.choice.put_off += self.put_off

    def accept(self, sampled: SampleOutput, index: int) -> bool:
        """Accept the token that was drawn from `row`; whether one can be drawn from a row after it."""
        choice, sequence = self.choice, self.choice.sequence
        first = choice.row.position == 0
        self.error = sampled.errors[index]
        if choice.scores is not None and first:
            self.error = self.error or choice.scores.error
            if self.error is None:
                self.events.append(choice.scores.event())
        if self.error is not None:
            return False
        self.choice.put_off = 0
        token, logprob = int(sampled.tokens[index]), None
        if choice.request_state.request.params.logprobs is not None:
            logprob = TokenLogprob(token, float(sampled.logprobs[index]), sampled.tops[index])
        before = len(sequence.tokens)
        try:
            self.events += choice.accept(token, logprob)
        except HeadraceError as error:  # of its grammar, or of the tokenizer's decoder
            self.error = error
            return False
        came = len(sequence.tokens) - before
        self.row += came
        return not choice.done and self._agrees(before, came)

    def accept_all(self, tokens: Sequence[int], sampler: Sampler) -> None:
        """Accept tokens that were drawn one after the other and that the choice's row knows, up to its end
        or to the number of an error."""
        drawn = [token for token in tokens if token >= 0]
        if drawn and not self.choice.done:
            try:
                self.events += self.choice.accept_sampled(drawn)
            except HeadraceError as error:
                self.error = error
                return
        if len(drawn) < len(tokens) and not self.choice.done:
            self.error = sampler.error(tokens[len(drawn)])

    def _agrees(self, before: int, came: int) -> bool:
        start = before - self.chunk.start - self.chunk.count
        if start + came > self.chunk.drafted:
            return False
        sequence = self.choice.sequence
        return sequence.draft[start : start + came] == sequence.tokens[before:]

    def merged(self) -> list[EngineEvent]:
        """The events, with all new text in one Delta."""
        deltas = [event for event in self.events if isinstance(event, Delta)]
        if len(deltas) < 2:
            return self.events
        first = self.events.index(deltas[0])
        text, tokens, logprobs = "", (), ()
        for delta in deltas:
            text, tokens, logprobs = text + delta.text, tokens + delta.tokens, logprobs + delta.logprobs
        rest = self.events[first + len(deltas) :]
        return [*self.events[:first], Delta(deltas[0].choice, text, tokens, logprobs), *rest]
