"""Prompt lookup: what followed the end of a text where it stood before, in the prompt or the output."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from headrace._native import MATCH_KINDS, SuffixAutomaton
from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.sequence import agreeing
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.draft_selection import best_depth
from headrace.engine.speculative.drafter import MAX_DRAFTED, Draft, DraftBudget
from headrace.engine.speculative.drafter_gain import DrafterGain
from headrace.engine.speculative.step_cost_model import StepCosts
from headrace.executors.executor import NO_DRAFTS, DraftPlan

PRIORS = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95)  # rates by the kind of what was found, see MATCH_KINDS
DEPTHS_INTERVAL = 32  # times until the depths that pay are worked out again
TRIED_KIND = 3  # drafts of this kind are considered even where their depth is 0
_SEPARATOR = -1  # between the prediction and the prompt: no match crosses it
_NO_DEPTHS = [0] * MATCH_KINDS


class IndexedText(Struct, eq=False):
    """A text in a suffix automaton (Blumer et al. 1985), which has every repetition at O(1) a token, and what
    is learned of its drafts. A prediction stands before the prompt."""

    automaton: SuffixAutomaton
    before: int  # tokens of the prediction and the separator
    rates: dict[int, OwnRate] = field(default_factory=dict[int, OwnRate])  # by kind
    unverified: tuple[int, Draft] | None = None  # a draft that was not verified, and the text's length then
    depths: list[int] = field(default_factory=list[int])  # tokens to verify by kind
    depths_for: tuple[int, int] = (0, 0)  # sequences and version of the common depths

    @property
    def fresh(self) -> bool:
        """Whether the prompt is not indexed yet."""
        return self.automaton.size == self.before

    def extend(self, tokens: Sequence[int]) -> None:
        """Index those of `tokens`, the text so far, that are not."""
        indexed = self.automaton.size - self.before
        if indexed < len(tokens):
            self.automaton.extend(tokens[indexed:])


def index_text(prediction: Sequence[int] = ()) -> IndexedText:
    """A text of which nothing is indexed but the prediction."""
    automaton = SuffixAutomaton()
    if prediction:
        automaton.extend([*prediction, _SEPARATOR])
    return IndexedText(automaton, automaton.size)


class PromptLookup:
    """Drafts by lookup (Saxena 2023): for single steps by `propose`, within calls of several steps by `plan`.

    Both index a prompt when they first need it, which is booked as an investment.
    """

    def __init__(self) -> None:
        self.gain: DrafterGain | None = DrafterGain()
        self.rates = [Rate(prior) for prior in PRIORS]
        """By kind, common to all texts."""
        self._texts: dict[int, IndexedText] = {}  # by sequence id
        self._depths: dict[int, list[int]] = {}  # by number of sequences: tokens to verify by kind
        self._depths_age = self._depths_version = 0

    def propose(self, choices: Sequence[ChoiceState], budget: DraftBudget) -> list[Draft]:
        """What followed the end of each text where it stood before."""
        common = self._common_depths(budget.sequences, budget.costs)
        drafts: list[Draft] = []
        for choice in choices:
            text = self._indexed(choice)
            kind = text.automaton.match_kind
            found = budget.found.get(choice.sequence.id)
            if kind < 0 or (kind < TRIED_KIND and not common[kind]) or found is not None:
                continue
            tokens = text.automaton.draft(MAX_DRAFTED)
            if choice.matcher is not None and tokens:
                tokens = tokens[: choice.matcher.fitting(tokens)]
            if tokens:
                rate = self._rate_of(text, kind)
                drafts.append(Draft(self, choice, tokens, rate.value, rate))
        return drafts

    def plan(self, slots: Sequence[SampleSlot], room: int, costs: StepCosts) -> DraftPlan:
        """What a call that begins with these slots may draft, in steps of at most `room` tokens."""
        sequences = len(slots)
        common = self._common_depths(sequences, costs)
        texts: list[SuffixAutomaton | None] = []
        depths: list[int] = []
        for slot in slots:
            text = self._indexed(slot.choice)
            if text.rates and text.depths_for != (sequences, self._depths_version):
                text.depths, text.depths_for = common.copy(), (sequences, self._depths_version)
                for kind, rate in text.rates.items():
                    text.depths[kind] = best_depth(rate.value, sequences, costs)
            texts.append(text.automaton)
            depths += text.depths if text.rates else common
        return DraftPlan(texts, depths, room) if texts else NO_DRAFTS

    def learn(
        self, slots: Sequence[SampleSlot], drafts: Iterable[tuple[int, int, int, int, int]]
    ) -> tuple[int, int]:
        """What became of a call's drafts (slot, kind, tokens verified, right, wrong): how many tokens were
        verified, and how many of them right."""
        verified = accepted = 0
        for index, kind, count, right, wrong in drafts:
            if not count:  # found in any text, and not verified
                self.rates[kind].note(right, wrong)
                continue
            choice = slots[index].choice
            verified += count
            accepted += right
            choice.request_state.accepted_drafts += right
            choice.request_state.rejected_drafts += count - right
            text = self._texts[choice.sequence.id]
            self._rate_of(text, kind).note(right, wrong)
            text.depths_for = (0, 0)
        return verified, accepted

    def accept(self, draft: Draft, right: int, wrong: int) -> None:
        """Learn from a verified draft; one that was not is compared with the text when that has grown."""
        if draft.rate is None:
            return
        if draft.count:
            draft.rate.note(right, wrong)
        elif (text := self._texts.get(draft.choice.sequence.id)) is not None:
            text.unverified = len(draft.choice.sequence.tokens), draft

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        text = self._texts.pop(choice.sequence.id, None)
        if text is not None:
            _learn_unverified(text, choice.sequence.tokens)
            assert self.gain is not None
            self.gain.write_off(1 / (1 + len(self._texts)))

    def close(self) -> None:
        """Nothing to release."""

    def _indexed(self, choice: ChoiceState) -> IndexedText:
        """The choice's text, with all of its tokens."""
        text, tokens = self._texts.get(choice.sequence.id), choice.sequence.tokens
        if text is None:
            began_s = time.perf_counter()
            text = self._texts[choice.sequence.id] = index_text(choice.request_state.request.prediction)
            text.extend(tokens)
            assert self.gain is not None
            self.gain.prompt_s += time.perf_counter() - began_s
            return text
        text.extend(tokens)
        if text.unverified is not None:
            _learn_unverified(text, tokens)
        return text

    def _rate_of(self, text: IndexedText, kind: int) -> OwnRate:
        rate = text.rates.get(kind)
        if rate is None:
            rate = text.rates[kind] = OwnRate(self.rates[kind])
        return rate

    def _common_depths(self, sequences: int, costs: StepCosts) -> list[int]:
        """How many tokens pay in a step of so many sequences, by kind, at the common rates."""
        self._depths_age += 1
        if self._depths_age >= DEPTHS_INTERVAL:
            self._depths_age = 0
            self._depths_version += 1
            self._depths.clear()
        depths = self._depths.get(sequences)
        if depths is None:
            depths = [best_depth(rate.value, sequences, costs) for rate in self.rates]
            self._depths[sequences] = depths
        return depths


def _learn_unverified(text: IndexedText, tokens: Sequence[int]) -> None:
    """Whether a draft would have been right costs nothing to see; where drafts do not seem to pay, rates are
    learned from nothing else."""
    if text.unverified is None:
        return
    at, draft = text.unverified
    came = list(tokens[at : at + len(draft.tokens)])
    if came and draft.rate is not None:
        right = agreeing(draft.tokens, came)
        draft.rate.note(right, int(right < len(came)))
    text.unverified = None
