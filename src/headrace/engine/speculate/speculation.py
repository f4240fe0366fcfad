"""Which guesses a step checks: drafters are asked, what pays by measured rates and costs is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from headrace._native import SuffixAutomaton
from headrace.engine.generation import Choice
from headrace.engine.sequence import Sequence as TokenSequence
from headrace.engine.sequence import State, agreeing
from headrace.engine.speculate.acceptance import OwnRate, Rate
from headrace.engine.speculate.books import Books
from headrace.engine.speculate.choosing import MOST_DRAFTED, Candidate, most_paying, pays
from headrace.engine.speculate.costs import LARGEST, Spent, StepCosts
from headrace.engine.speculate.draft_model import DraftModel
from headrace.engine.speculate.lookup import NOT_WATCHED, Lookup, Watched
from headrace.engine.speculate.pace import Looks, PlainTurns, Rests
from headrace.engine.speculate.quiet import Quiet
from headrace.engine.turn import Turn

LOOKUP_PRIORS = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95)  # by the class of the length that was found
MODEL_PRIOR = 0.7
MOST_BY_MODEL = 8
MOST_PENDING = 16  # tokens of a sequence that is still decoding: the sampled one and forced ones
LONGEST_PAUSE = 16  # looks at a text
PROBE_EVERY = 16  # times that a draft model, or a good draft, did not pay
PROBED = 7  # tokens of such a draft
LEAST_EVERY = 32  # steps until what has to be found is worked out again
TRIED_KIND = 3  # of what is found: so good a draft is tried even where none seems to pay
PREDICTION_GRANT = 1.0  # steps that a client's prediction may cost
_GOOD = 0.5  # probability of a first token


@dataclass(slots=True, eq=False)
class Drafting:
    """What is known of one choice's drafts. `rate` is that of the draft being checked."""

    lookup: Lookup | None
    lookup_rates: dict[int, OwnRate]  # by kind
    model_rate: OwnRate
    rate: OwnRate | None = None
    unchecked: tuple[int, list[int], OwnRate] | None = None  # where something did not seem to pay, and what
    pause: int = 0  # looks to go without a draft
    failures: int = 0  # drafts in a row of which nothing was right, or that did not pay


class Speculation:
    """Sets the drafts of sequences before a step, and learns from what became of them. For the loop alone.

    A step's tokens cost what steps of that size took; a draft's token is right with the rate at which drafts
    of its kind were. What is checked is what makes most tokens a second by these two, which is nothing where
    guessing does not pay. Where it did not come out so, an Account says when to try again. No token ever
    depends on it: see Turn.
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
        self._refused = 0  # good drafts that did not pay, since one was checked
        self._looks, self._rests, self._plain = Looks(), Rests(), PlainTurns()
        self._least: int = 0  # kind of what has to be found, beside so many tokens; how often it was asked
        self._least_for: int = 0
        self._least_age = 0
        self._books = Books()
        self._quiet: Quiet | None = None

    @property
    def _plain_turn(self) -> bool:
        return self._plain.due or not self.costs.known

    @property
    def _free(self) -> bool:
        """Whether the next call is as if there were no speculation, but for texts that are watched."""
        return self._looks.rare or self._plain_turn

    @property
    def rest(self) -> int:
        """Steps after the next one for which nothing need be looked for, but in texts that are watched."""
        return sys.maxsize if self._free else self._looks.rest

    def propose(self, choices: Collection[Choice]) -> None:
        """Set the drafts of the choices that are to be verified in the next step."""
        self._books.open_look()
        if self._quiet is not None and self._quiet.holds(len(choices)):
            return
        self._quiet = None
        for choice in self._set:
            choice.sequence.draft = []
        self._set = []
        if self._plain_turn:
            return
        self._books.earn()
        decoding = self._decoding(choices)
        tokens = sum(choice.sequence.pending for choice in decoding)
        room = min(self._max_rows - len(decoding), LARGEST - tokens)
        if not decoding:
            return
        if room < 1:
            self._quiet = Quiet(len(choices), {}, 0)
            self._looks.wanted = False
            return
        with_model = self._model is not None and self._books.model.open
        due = self._looks.due(with_model or any(choice.matcher is not None for choice in decoding))
        watching = self._books.lookup.tolerant and self._rests.due(len(decoding))
        candidates = self._candidates(decoding, due, watching)
        if due and with_model and self._model is not None:
            candidates = self._with_model(self._model, decoding, candidates, tokens, room)
        if candidates:
            self._choose(candidates, len(decoding), tokens, room)
        checked = [candidate for candidate in candidates if candidate.count]
        if checked and all(candidate.rate is None for candidate in checked):
            self._books.charged = None  # what is forced is sure, and nobody's merit
        if due:
            self._looks.note(found=bool(self._set))
        if watching:
            self._rests.note(found=bool(self._set))
            if len(decoding) == len(choices) and not candidates and not self._looks.wanted:
                self._quiet = self._all_quiet(decoding)

    def _all_quiet(self, decoding: Sequence[Choice]) -> Quiet | None:
        """What to look at as long as nothing can be drafted."""
        self._rests.end()
        texts: dict[int, tuple[Lookup, TokenSequence]] = {}
        if self._books.lookup.tolerant:
            for choice in decoding:
                state = self._states.get(choice.sequence.id)
                if state is not None and state.pause > 0:
                    return None
                if state is not None and state.lookup is not None and not state.lookup.fresh:
                    texts[choice.sequence.id] = state.lookup, choice.sequence
        return Quiet(len(decoding), texts, 1 << self._least)

    def _decoding(self, choices: Iterable[Choice]) -> list[Choice]:
        decoding: list[Choice] = []
        for choice in choices:
            sequence = choice.sequence
            if sequence.state is State.RUNNING and sequence.pending <= MOST_PENDING and not sequence.scores:
                decoding.append(choice)
        return decoding

    def watched(self, turns: Sequence[Turn]) -> Watched:
        """What the turns' step and its repeats should watch."""
        if self._quiet is not None:
            return self._quiet.watched(turns)
        if self._plain_turn or not self._books.lookup.tolerant:
            return NOT_WATCHED
        texts: list[SuffixAutomaton | None] = []
        for turn in turns:
            sequence = turn.chunk.sequence
            state = self._states.get(sequence.id)
            lookup = None if state is None or state.pause else state.lookup
            texts.append(lookup.text if lookup is not None and lookup.knows(sequence.tokens) else None)
        return Watched(texts, 1 << self._least)

    def learn(self, turns: Sequence[Turn], spent: Spent) -> None:
        """What became of the step's turns; its repeats belong to the rest. Cheap where nothing was drafted:
        steps may be shorter than this."""
        self._looks.ran(spent.steps)
        self._rests.ran(spent.steps)
        self._books.ran(spent.steps)
        right = 0
        if any(turn.chunk.drafted for turn in turns):
            self._plain.note_drafts(spent.looked_s + spent.run_s + spent.loop_s)
            right = self._count(turns)
            if _only_decodes(turns, spent):
                self.costs.note(spent.tokens, spent.run_s)
                self.costs.note_loop(spent.loop_s)
        elif spent.tokens == len(turns) or _only_decodes(turns, spent):
            whole = spent.steps == spent.asked  # or else its steps bear more of the loop than others
            if self._free and whole and self._plain.measures(its_turn=self._plain_turn):
                self.costs.note_plain(spent.tokens, spent.steps, spent.run_s, spent.loop_s)
                self._plain.note(spent.run_s + spent.loop_s)
        else:
            if self._plain_turn:  # but this one says nothing
                self._plain.put_off()
            self.costs.note_prompt(spent.tokens, spent.run_s)
        if self._books.busy and self.costs.known:
            self._books.settle(turns, spent, right, self.costs, free=self._free)

    def _count(self, turns: Sequence[Turn]) -> int:
        """Learn rates from the drafts that were checked; how many tokens of them were right."""
        before = self.accepted
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
        return self.accepted - before

    def forget(self, choice: Choice) -> None:
        """The choice has ended."""
        self._quiet = None
        state = self._states.pop(choice.sequence.id, None)
        if state is not None:
            self._learn_unchecked(state, choice.sequence.tokens)
            self._books.write_off(1 / (1 + len(self._states)))
        if self._model is not None:
            self._model.forget(choice.sequence.id)

    def close(self) -> None:
        """The loop has ended: let go of the draft model and its memory."""
        self._model = None

    def _state(self, choice: Choice) -> Drafting:
        sequence = choice.sequence
        state = self._states.get(sequence.id)
        if state is None:
            prediction = choice.generation.request.prediction
            state = self._states[sequence.id] = Drafting(
                Lookup(sequence.prompt_length, prediction) if self._lookup or prediction else None,
                {},
                OwnRate(self._model_rate),
            )
        return state

    def _candidates(self, decoding: Sequence[Choice], due: bool, watching: bool) -> list[Candidate]:
        """What is forced and what is found in the texts, where these are to be looked for."""
        found: list[Candidate] = []
        least = self._least_kind(len(decoding)) if watching else 0
        for choice in decoding:
            forced = choice.matcher.forced_run if due and choice.matcher is not None else []
            if forced:
                found.append(Candidate(choice, forced[:MOST_DRAFTED], None, 1.0))
            elif watching and (candidate := self._look_up(choice, least)) is not None:
                found.append(candidate)
        return found

    def _look_up(self, choice: Choice, least: int) -> Candidate | None:
        """What follows the end of the text where it stood before, if that is good enough."""
        if choice.sequence.id not in self._states:
            if choice.generation.request.prediction:
                self._books.lookup.grant(PREDICTION_GRANT)
            if not self._books.lookup.open:
                return None
        state = self._state(choice)
        if state.lookup is None:
            return None
        if state.lookup.fresh and not self._take_prompt(state.lookup, choice.sequence.tokens):
            return None
        kind = state.lookup.follow(choice.sequence.tokens)
        self._learn_unchecked(state, choice.sequence.tokens)
        if state.pause > 0:
            state.pause -= 1
            return None
        if kind < least:
            return None
        self._books.charged = self._books.lookup
        draft = state.lookup.draft(choice.sequence.tokens, MOST_DRAFTED)
        if choice.matcher is not None and draft:
            draft = draft[: choice.matcher.fitting(draft)]
        if not draft:
            return None
        rate = state.lookup_rates.get(kind)
        if rate is None:
            rate = state.lookup_rates[kind] = OwnRate(self._lookup_rates[kind])
        return Candidate(choice, draft, rate, rate.value)

    def _take_prompt(self, lookup: Lookup, tokens: Sequence[int]) -> bool:
        """Take the text so far, if the account allows for it."""
        if not self._books.lookup.open:
            return False
        began_s = time.perf_counter()
        lookup.follow(tokens)
        self._books.taken_s += time.perf_counter() - began_s
        return True

    def _least_kind(self, base: int) -> int:
        """The least kind of what may be found that pays beside `base` tokens, or one that is good enough to
        be tried."""
        self._least_age += 1
        if base != self._least_for or self._least_age >= LEAST_EVERY:
            self._least_for = base
            self._least_age = 0
            paying = (
                kind for kind in range(TRIED_KIND) if pays(self._lookup_rates[kind].value, base, self.costs)
            )
            self._least = next(paying, TRIED_KIND)
        return self._least

    def _with_model(
        self, model: DraftModel, decoding: list[Choice], found: list[Candidate], tokens: int, room: int
    ) -> list[Candidate]:
        """Let the model draft for the choices for which nothing better was found, if that pays: what was
        found, or its draft instead."""
        best = {candidate.choice: candidate for candidate in found}
        asked: list[Choice] = []
        for choice in decoding:
            chance = best[choice].chance if choice in best else 0.0
            if chance < self._state(choice).model_rate.value:
                asked.append(choice)
        depth = self._depth(model, asked, len(decoding), tokens, room)
        if depth == 0:
            return found
        self._books.charged, before_s = self._books.model, model.caught_up_s
        for choice, draft in zip(asked, model.draft(asked, depth), strict=True):
            if choice.matcher is not None and draft:
                draft = draft[: choice.matcher.fitting(draft)]
            if draft:
                rate = self._state(choice).model_rate
                best[choice] = Candidate(choice, draft, rate, rate.value)
        self._books.caught_up_s = model.caught_up_s - before_s
        return list(best.values())

    def _depth(self, model: DraftModel, asked: list[Choice], base: int, tokens: int, room: int) -> int:
        """How many tokens the model should draft for each choice: those that make most tokens a second."""
        if not asked:
            return 0
        curve, loop_s = self.costs.curve(), self.costs.loop_s
        each_s = model.seconds(len(asked), curve[len(asked)])  # for a token of each
        chances = [self._state(choice).model_rate.value for choice in asked]
        powers = list(chances)
        best, best_rate, gained = 0, base / (curve[tokens] + self.costs.plain_loop_s), float(base)
        for depth in range(1, min(MOST_BY_MODEL, room // len(asked)) + 1):
            gained += sum(powers)
            powers = [power * chance for power, chance in zip(powers, chances, strict=True)]
            seconds = curve[tokens + depth * len(asked)] + depth * each_s
            if gained / (seconds + loop_s) > best_rate:
                best, best_rate = depth, gained / (seconds + loop_s)
        self._unpaid = 0 if best else self._unpaid + 1
        if self._unpaid >= PROBE_EVERY and room >= len(asked):
            self._unpaid = 0
            return 1
        return best

    def _choose(self, candidates: Sequence[Candidate], base: int, tokens: int, room: int) -> None:
        """Set of all drafts' tokens, likeliest first, so many as make most tokens a second."""
        taken, best = most_paying(candidates, base, tokens, room, self.costs)
        if taken and not best and self._probes(candidates[taken[0]].chance):
            best = min(len(taken), PROBED)
        for index in taken[:best]:
            candidates[index].count += 1
        for candidate in candidates:
            self._set_draft(candidate)

    def _probes(self, chance: float) -> bool:
        """Whether a draft that does not seem to pay is checked all the same, because it is good and what
        steps cost may have been measured at a bad moment."""
        self._refused += chance > _GOOD
        if self._refused < PROBE_EVERY:
            return False
        self._refused = 0
        return True

    def _set_draft(self, candidate: Candidate) -> None:
        choice = candidate.choice
        state = self._states.get(choice.sequence.id)
        if candidate.count:
            choice.sequence.draft = candidate.draft[: candidate.count]
            self._set.append(choice)
            if state is not None:
                state.rate = candidate.rate
        elif state is not None and candidate.rate is not None and candidate.rate is not state.model_rate:
            state.unchecked = len(choice.sequence.tokens), candidate.draft, candidate.rate
            state.failures += 1
            self._pause(state)

    def _learn_unchecked(self, state: Drafting, tokens: list[int]) -> None:
        """Whether it would have been right costs nothing to see, and what never seems to pay is learned from
        nothing else."""
        if state.unchecked is None:
            return
        at, draft, rate = state.unchecked
        came = tokens[at : at + len(draft)]
        if came:
            right = agreeing(draft, came)
            rate.note(right, int(right < len(came)))
        state.unchecked = None

    def _pause(self, state: Drafting) -> None:
        state.pause = min(LONGEST_PAUSE, (1 << state.failures) >> 2)


def _only_decodes(turns: Sequence[Turn], spent: Spent) -> bool:
    """Whether a step had nothing but turns, and none of them a prompt."""
    chunks = [turn.chunk for turn in turns]
    decode = all(chunk.start >= chunk.sequence.prompt_length for chunk in chunks)
    return decode and sum(chunk.length for chunk in chunks) == spent.tokens
