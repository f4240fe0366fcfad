"""Lookup in the texts of an engine's sequences: by the loop, and within calls of several steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from headrace._native import MATCH_KINDS, SuffixAutomaton
from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.draft_selection import MAX_DRAFTED, DraftCandidate, best_depth, pays
from headrace.engine.speculative.drafter_state import Drafting
from headrace.engine.speculative.ledger import SpeculationLedger
from headrace.engine.speculative.prompt_lookup import Lookup
from headrace.engine.speculative.step_cost_model import StepCosts
from headrace.executors.executor import NO_DRAFTS, DraftPlan

PRIORS = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95)  # rates by the kind of what was found, see MATCH_KINDS
MIN_INTERVAL = 32  # times until what pays is worked out again
TRIED_KIND = 3  # of what is found: so good a draft is tried even where none seems to pay
PREDICTION_GRANT = 1.0  # steps that a client's prediction may cost
_NOTHING = [0] * MATCH_KINDS
Guessed = tuple[int, int, int, int, int]  # slot, kind, tokens that were checked, right, and wrong


class NgramIndexes:
    """The sequences' texts, each with what is known of its drafts, and the rates that they have in common."""

    def __init__(self, books: SpeculationLedger, *, lookup: bool, model_rate: Rate) -> None:
        self.rates = [Rate(prior) for prior in PRIORS]
        self._books, self._lookup, self._model_rate = books, lookup, model_rate
        self._states: dict[int, Drafting] = {}  # by sequence id
        self._least: int = 0  # kind of what has to be found ...
        self._least_for: int = 0  # ... beside so many tokens
        self._least_age = 0  # times that it was asked for
        self._depths: dict[int, list[int]] = {}  # what calls guess by kind, beside so many tokens
        self._depths_age = 0
        self._epoch = 0  # of those depths

    def known(self, sequence_id: int) -> Drafting | None:
        """What is known of a sequence's drafts, if anything is."""
        return self._states.get(sequence_id)

    @property
    def watched(self) -> bool:
        """Whether a text has been taken in which something may still be found."""
        if not self._books.lookup.tolerant:
            return False
        return any(state.lookup is not None and not state.lookup.fresh for state in self._states.values())

    def state(self, choice: ChoiceState) -> Drafting:
        """The same; from now on something is."""
        sequence = choice.sequence
        state = self._states.get(sequence.id)
        if state is None:
            prediction = choice.request_state.request.prediction
            state = self._states[sequence.id] = Drafting(
                Lookup(sequence.prompt_length, prediction) if self._lookup or prediction else None,
                OwnRate(self._model_rate),
            )
        return state

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        state = self._states.pop(choice.sequence.id, None)
        if state is not None:
            began_s = time.perf_counter()
            state.learn_unchecked(choice.sequence.tokens)
            self._books.write_off(1 / (1 + len(self._states)))
            state.lookup = None  # to let go of a text takes as long as to take one in
            self._books.called_s += time.perf_counter() - began_s

    # -- by the loop ----------------------------------------------------------------------------------

    def grant(self, decoding: Iterable[ChoiceState]) -> None:
        """A prediction may always be tried, once for each choice."""
        for choice in decoding:
            if choice.request_state.request.prediction and choice.sequence.id not in self._states:
                self.state(choice)
                self._books.lookup.grant(PREDICTION_GRANT)

    def find(self, choice: ChoiceState, least: int) -> DraftCandidate | None:
        """What follows the end of the text where it stood before, if that is of the `least` kind."""
        if choice.sequence.id not in self._states and not self._books.lookup.open:
            return None
        state = self.state(choice)
        if state.lookup is None:
            return None
        if state.lookup.fresh and not self._take_prompt(state.lookup, choice.sequence.tokens):
            return None
        kind = state.lookup.follow(choice.sequence.tokens)
        state.learn_unchecked(choice.sequence.tokens)
        if state.pause > 0:
            state.pause -= 1
            return None
        if kind < least:
            return None
        self._books.charged = self._books.lookup
        draft = state.lookup.draft(choice.sequence.tokens, MAX_DRAFTED)
        if choice.matcher is not None and draft:
            draft = draft[: choice.matcher.fitting(draft)]
        if not draft:
            return None
        rate = state.rate_of(kind, self.rates[kind])
        return DraftCandidate(choice, draft, rate, rate.value)

    def least_kind(self, base: int, costs: StepCosts) -> int:
        """The least kind of what may be found that pays beside `base` tokens, or one that is good enough to
        be tried."""
        self._least_age += 1
        if base != self._least_for or self._least_age >= MIN_INTERVAL:
            self._least_for = base
            self._least_age = 0
            paying = (kind for kind in range(TRIED_KIND) if pays(self.rates[kind].value, base, costs))
            self._least = next(paying, TRIED_KIND)
        return self._least

    def _take_prompt(self, lookup: Lookup, tokens: Sequence[int]) -> bool:
        """Take the text so far, if the account allows for it."""
        if not self._books.lookup.open:
            return False
        began_s = time.perf_counter()
        lookup.follow(tokens)
        self._books.taken_s += time.perf_counter() - began_s
        return True

    # -- within calls of several steps ----------------------------------------------------------------

    def guesses(self, slots: Sequence[SampleSlot], room: int, costs: StepCosts) -> DraftPlan:
        """What a call with these slots may guess, in steps of at most `room` tokens."""
        if not self._books.lookup.tolerant:
            return NO_DRAFTS
        began_s, taken_s = time.perf_counter(), self._books.taken_s
        found = self._guesses(slots, room, costs)
        if found.texts and self._books.charged is None:
            self._books.charged = self._books.lookup  # without texts nothing would have been looked for
        self._books.called_s += time.perf_counter() - began_s - (self._books.taken_s - taken_s)
        return found

    def _guesses(self, slots: Sequence[SampleSlot], room: int, costs: StepCosts) -> DraftPlan:
        base = len(slots)
        self._depths_age += 1
        if self._depths_age >= MIN_INTERVAL:
            self._depths_age = 0
            self._epoch += 1
            self._depths.clear()
        if base not in self._depths:
            self._depths[base] = [best_depth(rate.value, base, costs) for rate in self.rates]
        texts: list[SuffixAutomaton | None] = []
        depths: list[int] = []
        for slot in slots:
            text, mine = self._guessed_in(slot.choice, base, costs)
            texts.append(text)
            depths += mine
        return DraftPlan(texts, depths, room) if any(text is not None for text in texts) else NO_DRAFTS

    def _guessed_in(
        self, choice: ChoiceState, base: int, costs: StepCosts
    ) -> tuple[SuffixAutomaton | None, list[int]]:
        """A choice's text, which knows all of its tokens, and how many are to be checked by kind."""
        state, tokens = self._states.get(choice.sequence.id), choice.sequence.tokens
        if state is None or not state.taken:
            if state is None and not self._books.lookup.open:
                return None, _NOTHING
            state = self.state(choice)
            if state.lookup is not None:
                state.taken = not state.lookup.fresh or self._take_prompt(state.lookup, tokens)
        lookup = state.lookup
        if lookup is None or not state.taken:
            return None, _NOTHING
        lookup.catch_up(tokens)
        state.learn_unchecked(tokens)
        if state.pause > 0:
            state.pause -= 1
            return lookup.text, _NOTHING
        if not state.lookup_rates:
            return lookup.text, self._depths[base]
        if state.depths is None or state.depths_for != (base, self._epoch):
            depths, state.depths_for = self._depths[base].copy(), (base, self._epoch)
            for kind, rate in state.lookup_rates.items():
                depths[kind] = best_depth(rate.value, base, costs)
            state.depths = depths
        return lookup.text, state.depths

    def learn(
        self, slots: Sequence[SampleSlot], guessed: Iterable[tuple[int, int, int, int, int]]
    ) -> tuple[int, int]:
        """What became of a call's guesses: how many tokens were checked, and how many of them right."""
        checked = right = 0
        for index, kind, count, good, wrong in guessed:
            if not count:  # of all texts together, found and not checked
                self.rates[kind].note(good, wrong)
                continue
            choice = slots[index].choice
            checked += count
            right += good
            choice.request_state.accepted_drafts += good
            choice.request_state.rejected_drafts += count - good
            state = self.state(choice)
            state.rate_of(kind, self.rates[kind]).note(good, wrong)
            state.depths = None
            state.note_draft(good=good > 0)
        return checked, right
