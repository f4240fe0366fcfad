"""Which guesses a step checks: drafters are asked, what pays by measured rates and costs is kept."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.engine.generation import Choice
from headrace.engine.sequence import State, agreeing
from headrace.engine.speculate.acceptance import OwnRate, Rate
from headrace.engine.speculate.costs import LARGEST, StepCosts
from headrace.engine.speculate.draft_model import DraftModel
from headrace.engine.speculate.lookup import Lookup
from headrace.engine.turn import Turn

LOOKUP_PRIORS = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95)  # by the class of the length that was found
MODEL_PRIOR = 0.7
MOST_DRAFTED = 31  # of one sequence
MOST_BY_MODEL = 8
MOST_PENDING = 16  # tokens of a sequence that is still decoding: the sampled one and forced ones
LONGEST_PAUSE = 16  # steps
LONGEST_REST = 8  # steps without any draft before drafts are looked for again
PROBE_EVERY = 16  # times that a draft model did not pay
MEASURE_EVERY = 8  # steps without drafts
_LEAST = 0.02  # probability of a token that is worth being looked at


@dataclass(slots=True, eq=False)
class Drafting:
    """What is known of one choice's drafts. `rate` is that of the draft being checked."""

    lookup: Lookup | None
    lookup_rates: list[OwnRate]
    model_rate: OwnRate
    rate: OwnRate | None = None
    pause: int = 0  # steps to go without a draft
    failures: int = 0  # drafts in a row of which nothing was right, or that did not pay


@dataclass(slots=True, eq=False)
class _Candidate:
    choice: Choice
    draft: list[int]
    rate: OwnRate | None
    chance: float
    count: int = field(default=0)


class Speculation:
    """Sets the drafts of sequences before a step, and learns from what became of them. For the loop alone.

    A step's tokens cost what steps of that size took; a draft's token is right with the rate at which drafts
    of its kind were. What is checked is what makes most tokens a second by these two, which is nothing where
    guessing does not pay. No token ever depends on it: see Turn.
    """

    def __init__(self, *, max_rows: int, lookup: bool = True, model: DraftModel | None = None) -> None:
        self.drafted = self.accepted = 0
        self.costs = StepCosts()
        self._max_rows, self._lookup, self._model = max_rows, lookup, model
        self._lookup_rates = [Rate(prior) for prior in LOOKUP_PRIORS]
        self._model_rate = Rate(MODEL_PRIOR)
        self._states: dict[int, Drafting] = {}  # by sequence id
        self._set: list[Choice] = []
        self._unpaid = 0  # times in a row that a draft model did not pay
        self._empty = 0  # times in a row that nothing was drafted
        self._rest = 0  # steps to go until drafts are looked for
        self._unmeasured = 0  # steps in a row

    def propose(self, choices: Iterable[Choice]) -> None:
        """Set the drafts of the choices that are to be verified in the next step."""
        if self._rest > 0:
            self._rest -= 1
            return
        for choice in self._set:
            choice.sequence.draft = []
        self._set = []
        if self.costs.known:
            self._propose(choices)
        # Looking takes its time too: where nothing comes of it, it is done less often.
        self._empty = 0 if self._set else self._empty + 1
        self._rest = min(self._empty // 2, LONGEST_REST)

    def _propose(self, choices: Iterable[Choice]) -> None:
        decoding: list[Choice] = []
        tokens = 0
        for choice in choices:
            sequence = choice.sequence
            if sequence.state is State.RUNNING and sequence.pending <= MOST_PENDING and not sequence.scores:
                decoding.append(choice)
                tokens += sequence.pending
        room = min(self._max_rows - len(decoding), LARGEST - tokens)
        if not decoding or room < 1:
            return
        candidates = [found for choice in decoding if (found := self._look_up(choice)) is not None]
        if self._model is not None:
            candidates += self._drafts_of_model(self._model, decoding, candidates, tokens, room)
        if candidates:
            self._choose(candidates, len(decoding), tokens, room)

    def learn(self, turns: Sequence[Turn], tokens: int, seconds: float) -> None:
        """What became of the step: its turns, how many tokens it computed, and how long it took in all."""
        self._measure(turns, tokens, seconds)
        if not self._set:
            return
        for turn in turns:
            drafted = turn.chunk.drafted
            if not drafted:
                continue
            sequence = turn.choice.sequence
            came = sequence.tokens[turn.chunk.start + turn.chunk.count :]
            right = agreeing(sequence.draft[:drafted], came)
            self.drafted += drafted
            self.accepted += right
            turn.choice.generation.accepted_drafts += right
            turn.choice.generation.rejected_drafts += drafted - right
            state = self._states.get(sequence.id)
            if state is None:
                continue
            if state.rate is not None:
                state.rate.note(right, int(right < min(drafted, len(came))))
            if state.rate is not state.model_rate:
                state.failures = 0 if right else state.failures + 1
                self._pause(state)

    def _measure(self, turns: Sequence[Turn], tokens: int, seconds: float) -> None:
        """Take note of a step that only decoded; of those without drafts now and then."""
        self._unmeasured += 1
        if not self._set and self._unmeasured < MEASURE_EVERY and self.costs.known:
            return
        chunks = [turn.chunk for turn in turns]
        if sum(chunk.length for chunk in chunks) == tokens and all(
            chunk.start >= chunk.sequence.prompt_length for chunk in chunks
        ):
            self.costs.note(tokens, seconds)
            self._unmeasured = 0

    def forget(self, choice: Choice) -> None:
        """The choice has ended."""
        self._states.pop(choice.sequence.id, None)
        if self._model is not None:
            self._model.forget(choice.sequence.id)

    def _state(self, choice: Choice) -> Drafting:
        sequence = choice.sequence
        state = self._states.get(sequence.id)
        if state is None:
            prediction = choice.generation.request.prediction
            state = self._states[sequence.id] = Drafting(
                Lookup(sequence.prompt_length, prediction) if self._lookup or prediction else None,
                [OwnRate(rate) for rate in self._lookup_rates],
                OwnRate(self._model_rate),
            )
        return state

    def _look_up(self, choice: Choice) -> _Candidate | None:
        """What is forced, or found in the text."""
        matcher = choice.matcher
        if matcher is not None and (forced := matcher.forced_run):
            return _Candidate(choice, forced[:MOST_DRAFTED], None, 1.0)
        state = self._state(choice)
        if state.lookup is None:
            return None
        if state.pause > 0:
            state.pause -= 1
            return None
        kind, draft = state.lookup.draft(choice.sequence.tokens, MOST_DRAFTED)
        if matcher is not None and draft:
            draft = draft[: matcher.fitting(draft)]
        if not draft:
            return None
        rate = state.lookup_rates[kind]
        return _Candidate(choice, draft, rate, rate.value)

    def _drafts_of_model(
        self, model: DraftModel, decoding: list[Choice], found: list[_Candidate], tokens: int, room: int
    ) -> list[_Candidate]:
        """Let the model draft for the choices for which nothing better was found, if that pays; candidates
        that it does better are taken out of `found`."""
        chances = {candidate.choice: candidate.chance for candidate in found}
        asked: list[Choice] = []
        for choice in decoding:
            if chances.get(choice, 0.0) < self._state(choice).model_rate.value:
                asked.append(choice)
        depth = self._depth(model, asked, len(decoding), tokens, room)
        if depth == 0:
            return []
        better = set(asked)
        found[:] = [candidate for candidate in found if candidate.choice not in better]
        drafts = model.draft(asked, depth)
        made: list[_Candidate] = []
        for choice, draft in zip(asked, drafts, strict=True):
            if choice.matcher is not None and draft:
                draft = draft[: choice.matcher.fitting(draft)]
            if draft:
                rate = self._state(choice).model_rate
                made.append(_Candidate(choice, draft, rate, rate.value))
        return made

    def _depth(self, model: DraftModel, asked: list[Choice], base: int, tokens: int, room: int) -> int:
        """How many tokens the model should draft for each choice: those that make most tokens a second."""
        if not asked:
            return 0
        curve = self.costs.curve()
        chances = [self._state(choice).model_rate.value for choice in asked]
        powers = list(chances)
        best, best_rate, gained = 0, base / curve[tokens], float(base)
        for depth in range(1, min(MOST_BY_MODEL, room // len(asked)) + 1):
            gained += sum(powers)
            powers = [power * chance for power, chance in zip(powers, chances, strict=True)]
            seconds = curve[tokens + depth * len(asked)] + model.seconds(len(asked), depth, curve[1])
            if gained / seconds > best_rate:
                best, best_rate = depth, gained / seconds
        self._unpaid = 0 if best else self._unpaid + 1
        if self._unpaid >= PROBE_EVERY and room >= len(asked):
            self._unpaid = 0
            return 1
        return best

    def _choose(self, candidates: Sequence[_Candidate], base: int, tokens: int, room: int) -> None:
        """Set of all drafts' tokens, likeliest first, so many as make most tokens a second."""
        curve = self.costs.curve()
        queue = [(-candidate.chance, index) for index, candidate in enumerate(candidates)]
        heapq.heapify(queue)
        taken: list[int] = []
        gained, best, best_rate = float(base), 0, base / curve[tokens]
        while queue and len(taken) < room:
            chance, index = heapq.heappop(queue)
            candidate = candidates[index]
            gained -= chance
            taken.append(index)
            candidate.count += 1
            if candidate.count < len(candidate.draft) and chance * candidate.chance < -_LEAST:
                heapq.heappush(queue, (chance * candidate.chance, index))
            rate = gained / curve[tokens + len(taken)]
            if rate > best_rate:
                best, best_rate = len(taken), rate
        for index in taken[best:]:
            candidates[index].count -= 1
        for candidate in candidates:
            self._set_draft(candidate)

    def _set_draft(self, candidate: _Candidate) -> None:
        choice = candidate.choice
        state = self._states.get(choice.sequence.id)
        if candidate.count:
            choice.sequence.draft = candidate.draft[: candidate.count]
            self._set.append(choice)
            if state is not None:
                state.rate = candidate.rate
        elif state is not None and candidate.rate is not state.model_rate:
            state.failures += 1
            self._pause(state)

    def _pause(self, state: Drafting) -> None:
        state.pause = min(LONGEST_PAUSE, (1 << state.failures) >> 2)
