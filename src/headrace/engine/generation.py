"""What becomes of one request: its choices, their tokens turned to text, their ends, its usage."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.request import (
    ChoiceDone,
    Delta,
    Done,
    Event,
    FinishReason,
    Request,
    Sink,
    Timing,
    TokenLogprob,
    Usage,
)
from headrace.engine.sequence import Sequence
from headrace.sample.sampler import RowState
from headrace.text.stops import StopMatcher
from headrace.text.stream import Detokenizer


@dataclass(slots=True, eq=False)
class Choice:
    """One choice: its sequence, sampling state and text."""

    sequence: Sequence
    row: RowState
    detokenizer: Detokenizer
    stops: StopMatcher
    stop_ids: frozenset[int]
    generation: Generation
    done: bool = False

    def accept(self, token: int, logprob: TokenLogprob | None) -> list[Event]:
        """Take a sampled token: the text that it makes certain, and the end of the choice if it is one."""
        params = self.generation.request.params
        self.sequence.tokens.append(token)
        self.row.append(token)
        generated = len(self.sequence.tokens) - self.sequence.prompt_length
        stop: str | int | None = None
        text, reason = "", None
        if token in self.stop_ids:
            stop, reason = token, "stop"
        else:
            text, stop = self._text(token, watched=generated > params.min_tokens)
            reason = "stop" if stop is not None else None
        if reason is None and len(self.sequence.tokens) >= self.sequence.max_length:
            reason = "length"
        if reason is not None and not isinstance(stop, str):
            text += self._rest()
        logprobs = () if logprob is None else (logprob,)
        events: list[Event] = [Delta(self.sequence.choice, text, (token,), logprobs)]
        if reason is not None:
            events.append(self.end(reason, stop))
        return events

    def end(self, reason: FinishReason, stop: str | int | None = None) -> ChoiceDone:
        """Mark the choice as ended."""
        self.done = True
        return ChoiceDone(self.sequence.choice, reason, stop)

    def _text(self, token: int, *, watched: bool) -> tuple[str, str | None]:
        text = self.detokenizer.push(token)
        return self.stops.push(text) if watched else (text, None)

    def _rest(self) -> str:
        """What was held back, at the end: bytes of an unfinished character, the start of a stop string."""
        text, stop = self.stops.push(self.detokenizer.flush())
        return text if stop is not None else text + self.stops.flush()


@dataclass(slots=True, eq=False)
class Generation:
    """A request in the engine. Times are seconds of the monotonic clock."""

    request_id: str
    request: Request
    sink: Sink
    seed: int
    submitted_s: float
    choices: list[Choice] = field(default_factory=list[Choice])
    scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def done(self) -> bool:
        return all(choice.done for choice in self.choices)

    @property
    def deadline_s(self) -> float | None:
        """The absolute deadline, if there is one."""
        after = self.request.deadline_s
        return None if after is None else self.submitted_s + after

    def finished(self, now_s: float) -> Done:
        """The terminal event of a request whose choices have all ended."""
        first = self.choices[0].sequence
        generated = sum(len(c.sequence.tokens) - c.sequence.prompt_length for c in self.choices)
        usage = Usage(first.prompt_length, generated, first.cached_tokens, first.miss_reason)
        timing = Timing(
            queue_s=(self.scheduled_s or now_s) - self.submitted_s,
            first_token_s=(self.first_token_s or now_s) - self.submitted_s,
            total_s=now_s - self.submitted_s,
        )
        return Done(usage, timing, self.seed)
