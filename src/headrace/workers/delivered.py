"""What of a request's output its reader has: a second run of the request goes on where the first ended.

A request gives the same tokens whenever it runs, but a run may cut them into other deltas: a step may
give several, and a drafted one comes with its neighbors.
"""

from __future__ import annotations

from array import array

from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    RequestFailed,
    RequestFinished,
)

_TOKEN = "i"


class Diverged(Exception):
    """A second run gave other tokens than the first."""


class _Choice:
    """One choice: what its reader has, and how far the present run is."""

    __slots__ = ("characters", "run_characters", "run_tokens", "tokens")

    def __init__(self) -> None:
        self.tokens, self.characters = array(_TOKEN), 0
        self.run_tokens = self.run_characters = 0

    @property
    def behind(self) -> bool:
        return self.run_tokens < len(self.tokens) or self.run_characters < self.characters

    def rest(self, delta: Delta) -> Delta | None:
        """What of a delta the reader does not have."""
        begin = self.run_tokens
        old = min(len(delta.tokens), len(self.tokens) - begin)
        if self.tokens[begin : begin + old] != array(_TOKEN, delta.tokens[:old]):
            raise Diverged
        old_text = min(len(delta.text), self.characters - self.run_characters)
        self.run_tokens += old
        self.run_characters += old_text
        tokens, text = delta.tokens[old:], delta.text[old_text:]
        if not tokens and not text:
            return None
        logprobs = delta.logprobs if not old else delta.logprobs[old:]
        return Delta(delta.choice, text, tokens, logprobs)

    def add(self, delta: Delta) -> None:
        self.tokens.extend(delta.tokens)
        self.characters += len(delta.text)
        self.run_tokens += len(delta.tokens)
        self.run_characters += len(delta.text)


class DeliveredOutput:
    """The output of one request that has gone to its reader, over all its runs."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._ended: set[int] = set()
        self._once: set[type] = set()  # kinds of events that come once
        self._again = False

    def __bool__(self) -> bool:
        """Whether anything has gone to the reader."""
        return bool(self._choices or self._ended or self._once)

    @property
    def tokens(self) -> int:
        """How many, of all choices."""
        return sum(len(choice.tokens) for choice in self._choices.values())

    @property
    def ended(self) -> frozenset[int]:
        """The choices whose end the reader knows."""
        return frozenset(self._ended)

    @property
    def only_tokens(self) -> tuple[int, ...]:
        """The tokens of the first choice."""
        return tuple(self._choices[0].tokens) if 0 in self._choices else ()

    def begin_again(self) -> None:
        """The next events are those of a new run."""
        self._again = True
        for choice in self._choices.values():
            choice.run_tokens = choice.run_characters = 0

    def take(self, events: list[EngineEvent]) -> list[EngineEvent]:
        """Those of a run's events, or parts of them, that the reader does not have; they are noted as
        delivered. Diverged where the run gives other tokens than one before it."""
        if self._again:
            return [new for event in events if (new := self._new(event)) is not None]
        for event in events:
            self._note(event)
        return events

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, Delta):
            self._choice(event.choice).add(event)
        elif isinstance(event, ChoiceFinished):
            self._ended.add(event.choice)
        elif not isinstance(event, RequestFinished | RequestFailed):
            self._once.add(type(event))

    def _choice(self, number: int) -> _Choice:
        choice = self._choices.get(number)
        if choice is None:
            choice = self._choices[number] = _Choice()
        return choice

    def _new(self, event: EngineEvent) -> EngineEvent | None:
        new: EngineEvent | None = event
        if isinstance(event, Delta):
            new = self._choice(event.choice).rest(event)
            if new is not None and event.choice in self._ended:
                raise Diverged
        elif isinstance(event, ChoiceFinished):
            if self._choice(event.choice).behind:
                raise Diverged
            new = None if event.choice in self._ended else event
        elif type(event) in self._once:
            new = None
        if new is not None:
            self._note(new)
        return new
