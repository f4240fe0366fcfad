"""Test-time scaling of one request: which choices to stop, their common budget, which one is selected."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from typing import Protocol

from msgspec import Struct

from headrace.engine.request import ChoiceFinished, Delta, EngineEvent, FinishReason, Selection
from headrace.engine.scaling.answer_extraction import extract_of
from headrace.engine.scaling.majority_vote import MajorityVote
from headrace.engine.scaling.options import Candidate, Ranking, Scaling
from headrace.engine.scheduler.sequence import Sequence
from headrace.errors import InvalidRequest

TOTAL, DEADLINE = "max_total_tokens", "deadline_s"
"""Why a common budget ended choices."""


class ScaledChoice(Protocol):
    """The part of a choice that ScalingController uses."""

    sequence: Sequence
    done: bool
    limited_by: str | None


class Stop(Struct, frozen=True):
    """End the choice of that index, for this reason."""

    choice: int
    reason: FinishReason
    cause: str


class ScalingController:
    """One request's choices under one `Scaling`. After `consume`, end what it names and `consume` that, too.

    Where a common budget is used up, the choices under way end with reason "length". They vote only where no
    choice that ended by itself has an answer, and rank after those that did.
    """

    def __init__(self, scaling: Scaling, choices: Sequence_[ScaledChoice]) -> None:
        """`choices` are the request's, of which none has a token yet."""
        self._scaling, self._choices = scaling, choices
        self._limits = [choice.sequence.max_length for choice in choices]
        self._extract = None if scaling.vote is None else extract_of(scaling.vote)
        self._votes = MajorityVote(len(choices))
        self._texts: list[list[str]] = [[] for _ in choices]
        self._logprobs = [0.0] * len(choices)
        self._scored = [0] * len(choices)  # tokens whose log-probability is in it
        self._ended: dict[int, str] = {}  # by themselves: why
        self._cut: list[int] = []  # by a common budget
        self._budget: str | None = None
        self.tokens_saved = 0
        """What choices that were stopped because they could change nothing might still have generated."""

    def limit_to_budget(self, choice: ScaledChoice) -> bool:
        """Keep a choice's next tokens within the common budget; False where there is none left."""
        limit = self._scaling.max_total_tokens
        if limit is None:
            return True
        left = limit - sum(self._generated(index) for index in range(len(self._choices)))
        sequence = choice.sequence
        if len(sequence.tokens) + left < sequence.max_length:
            sequence.max_length = len(sequence.tokens) + left
            choice.limited_by = TOTAL
        return left > 0

    def consume(self, events: Sequence_[EngineEvent]) -> list[Stop]:
        """Read a step's events; the choices to end now. InvalidRequest where a pattern or function fails."""
        for event in events:
            if isinstance(event, Delta):
                self._texts[event.choice].append(event.text)
                for token in event.logprobs:
                    self._logprobs[event.choice] += token.logprob
                    self._scored[event.choice] += 1
            elif isinstance(event, ChoiceFinished):
                self._note(event)
        limit = self._scaling.max_total_tokens
        if limit is not None and sum(map(self._generated, range(len(self._choices)))) >= limit:
            return self._all(TOTAL)
        return self._outvoted() + self._outranked()

    def expire(self) -> list[Stop]:
        """The deadline has passed: the choices to end, none where none has a token yet."""
        if not any(map(self._generated, range(len(self._choices)))):
            return []
        return self._all(DEADLINE)

    def selection(self) -> Selection:
        """When all have ended. InvalidRequest where a function fails."""
        count = len(self._choices)
        if self._extract is not None:
            if self._votes.leader is None:
                for index in sorted(self._cut):
                    self._cast(index)
            winner = self._votes.winner
            order = [winner, *(index for index in range(count) if index != winner)]
            return Selection(tuple(order), self._votes.leader, tuple(self._votes.votes), budget=self._budget)
        if self._scaling.rank is None:
            return Selection(tuple(range(count)), budget=self._budget)
        scores = self._scores(self._scaling.rank)
        places = {index: (index not in self._ended, -scores[index]) for index in scores}
        order = sorted(range(count), key=lambda index: (*places.get(index, (2, 0.0)), index))
        return Selection(tuple(order), scores=tuple(map(scores.get, range(count))), budget=self._budget)

    def _generated(self, index: int) -> int:
        sequence = self._choices[index].sequence
        return len(sequence.tokens) - sequence.prompt_length

    def _note(self, event: ChoiceFinished) -> None:
        index = event.choice
        if event.reason == "cancelled":
            self.tokens_saved += self._limits[index] - len(self._choices[index].sequence.tokens)
        elif event.reason == "length" and event.stop in (TOTAL, DEADLINE):
            self._cut.append(index)
            self._budget = str(event.stop)
        else:
            self._ended[index] = event.reason
            if self._extract is not None:
                self._cast(index)

    def _cast(self, index: int) -> None:
        assert self._extract is not None
        text, place = "".join(self._texts[index]), self._scaling.place
        answer = text if place is None else place.find(text)
        self._votes.cast(index, None if answer is None else self._extract(answer), self._generated(index))

    def _all(self, cause: str) -> list[Stop]:
        return [Stop(index, "length", cause) for index, choice in enumerate(self._choices) if not choice.done]

    def _outvoted(self) -> list[Stop]:
        if self._extract is None:
            return []
        alive = [index for index, choice in enumerate(self._choices) if not choice.done]
        generated = {index: self._generated(index) for index in alive}
        return [Stop(index, "cancelled", "vote") for index in self._votes.prunable(generated)]

    def _outranked(self) -> list[Stop]:
        """Ranked by the text's log-probability: choices that are worse already than those to keep."""
        rank = self._scaling.rank
        if rank is None or rank.by != "sum_logprob" or len(self._ended) < rank.keep:
            return []
        kept = sorted((self._logprobs[index] for index in self._ended), reverse=True)[rank.keep - 1]
        return [
            Stop(index, "cancelled", "best_by")
            for index, choice in enumerate(self._choices)
            if not choice.done and self._logprobs[index] < kept
        ]

    def _scores(self, rank: Ranking) -> dict[int, float]:
        """Of all choices that were not stopped."""
        indices = sorted([*self._ended, *self._cut])
        if rank.by == "sum_logprob":
            return {index: self._logprobs[index] for index in indices}
        if rank.scorer is None:
            return {index: self._logprobs[index] / max(self._scored[index], 1) for index in indices}
        candidates = [
            Candidate(
                "".join(self._texts[index]),
                tuple(self._choices[index].sequence.tokens[self._choices[index].sequence.prompt_length :]),
                self._ended.get(index, "length"),
            )
            for index in indices
        ]
        try:
            scores = [float(score) for score in rank.scorer(candidates)]
            return dict(zip(indices, scores, strict=True))
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise InvalidRequest(f"best_by: the scorer failed: {cause}", param="best_by") from error
