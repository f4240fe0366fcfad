"""Which guesses a step checks: drafters are asked, what pays by measured rates and costs is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Sequence

from headrace._native import MultiStepResult
from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.sequence import State, agreeing
from headrace.engine.speculative.acceptance import Rate
from headrace.engine.speculative.draft_model import DraftModel
from headrace.engine.speculative.draft_selection import MAX_DRAFTED, DraftCandidate, best_drafts
from headrace.engine.speculative.ledger import SpeculationLedger
from headrace.engine.speculative.ngram_index import NgramIndexes
from headrace.engine.speculative.probing import BaselineProbe, IdleBackoff, LookupBackoff, ProposalBackoff
from headrace.engine.speculative.step_cost_model import LARGEST, StepCosts, StepTiming
from headrace.executors.executor import NO_DRAFTS, DraftPlan

MODEL_PRIOR = 0.7
MAX_MODEL_DRAFT = 8
MAX_PENDING = 16  # tokens of a sequence that is still decoding: the sampled one and forced ones
PROBE_EVERY = 16  # times that a draft model, or a good draft, did not pay
PROBED = 7  # tokens of such a draft
_GOOD = 0.5  # probability of a first token


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
        self._max_rows, self._model = max_rows, model
        self._books = SpeculationLedger()
        self._texts = NgramIndexes(self._books, lookup=lookup, model_rate=Rate(MODEL_PRIOR))
        self._set: list[ChoiceState] = []
        self._unpaid = 0  # times in a row that a draft model did not pay
        self._refused = 0  # good drafts that did not pay, since one was checked
        self._looks, self._rests, self._plain = ProposalBackoff(), LookupBackoff(), BaselineProbe()
        self._several = False  # whether the next step is expected to be one of a call
        self._sleep = IdleBackoff()

    @property
    def _plain_turn(self) -> bool:
        return self._plain.due or not self.costs.known

    @property
    def _free(self) -> bool:
        """Whether the next call is as if there were no speculation, but for what it guesses itself."""
        return self._looks.rare or self._plain_turn

    @property
    def rest(self) -> int:
        """Steps after the next one for which nothing need be looked for between them."""
        return sys.maxsize if self._free else self._looks.rest

    def asleep(self, steps: int) -> bool:
        """Whether nothing need be asked before the next step nor learned from it, when so many have run: what
        is asked in vain takes some hundredths of a short step, most of it for code that caches have lost."""
        if self._sleep.lasts(steps):
            return True
        self._books.ran(self._sleep.end(steps))
        return False

    def wake_for(self, choices: Iterable[ChoiceState]) -> None:
        """Choices have arrived; some need to be looked at whatever the accounts say."""
        if any(_announces(choice) for choice in choices):
            self._sleep.wake()

    def propose(self, choices: Collection[ChoiceState], *, several: bool = False) -> None:
        """Set the drafts of the choices that are to be verified in the next step. `several`: that step will
        be the first of a call, as far as one can know, which guesses in the texts itself."""
        self._several = several
        self._books.open_look()
        for choice in self._set:
            choice.sequence.draft = []
        self._set = []
        if self._plain_turn:
            return
        self._books.earn()
        with_model = self._model is not None and self._books.model.open
        if not with_model and not self._books.lookup.open:
            self._fall_asleep(choices)
        if several and not self._looks.due(with_model):
            return
        decoding = self._decoding(choices)
        tokens = sum(choice.sequence.pending for choice in decoding)
        room = min(self._max_rows - len(decoding), LARGEST - tokens)
        if not decoding:
            return
        if room < 1:
            self._looks.wanted = False
            return
        if not self._books.lookup.open:
            self._texts.grant(decoding)
        forced = any(choice.matcher is not None for choice in decoding)
        due = several or self._looks.due(with_model or forced)
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

    def _fall_asleep(self, choices: Iterable[ChoiceState]) -> None:
        """Sleep after the next step, if nothing can come up before an account allows for it."""
        if not self._texts.watched and not any(map(_announces, choices)):
            closed = self._books.lookup.closed_for
            self._sleep.begin(closed if self._model is None else min(closed, self._books.model.closed_for))

    def _decoding(self, choices: Iterable[ChoiceState]) -> list[ChoiceState]:
        decoding: list[ChoiceState] = []
        for choice in choices:
            sequence = choice.sequence
            if sequence.state is State.RUNNING and sequence.pending <= MAX_PENDING and not sequence.scores:
                decoding.append(choice)
        return decoding

    def guesses(self, slots: Sequence[SampleSlot]) -> DraftPlan:
        """What a call of several steps, the first with these slots, may guess."""
        if self._plain_turn:
            return NO_DRAFTS
        return self._texts.guesses(slots, min(self._max_rows, LARGEST), self.costs)

    def learn(self, slots: Sequence[SampleSlot], spent: StepTiming) -> None:
        """What became of the step's slots, or of those of a call of several steps. Cheap where nothing was
        drafted: steps may be shorter than this."""
        began_s, watched = time.perf_counter(), self._books.charged is self._books.lookup
        self._looks.ran(spent.steps)
        self._rests.ran(spent.steps)
        self._books.ran(spent.steps)
        if spent.ran is None:  # what this takes is in the loop's time around the next step
            self._learn_step(slots, spent)
            return
        self._learn_call(slots, spent, spent.ran)
        if watched:
            self._books.called_s += time.perf_counter() - began_s

    def _learn_step(self, slots: Sequence[SampleSlot], spent: StepTiming) -> None:
        right = 0
        if any(slot.chunk.drafted for slot in slots):
            self._plain.note_drafts(spent.looked_s + spent.run_s + spent.loop_s)
            right = self._count(slots)
            if _only_decodes(slots, spent):
                self.costs.note(spent.tokens, spent.run_s)
                self.costs.note_loop(spent.loop_s)
        elif spent.tokens == len(slots) or _only_decodes(slots, spent):
            # One that was expected to be part of a call bears more of the loop than others: calls say enough,
            # but where a slot waits for it.
            if not self._several or self._plain_turn:
                self._note_plain(spent.tokens, 1, spent.run_s, spent.loop_s)
        else:
            if self._plain_turn:  # but this one says nothing
                self._plain.put_off()
            self.costs.note_prompt(spent.tokens, spent.run_s)
        if self._books.called_s and self.costs.known:
            self._books.settle_called(len(slots), self.costs)
        if self._books.busy and self.costs.known:
            self._books.settle(slots, spent, right, self.costs, free=self._free)

    def _learn_call(self, slots: Sequence[SampleSlot], spent: StepTiming, ran: MultiStepResult) -> None:
        if ran.plain_steps:
            loop_s = spent.loop_s * ran.plain_steps / ran.steps
            self._note_plain(len(slots), ran.plain_steps, ran.plain_seconds, loop_s)
        right, tokens = 0, [tokens for tokens, _ in ran.draft_steps]
        if ran.drafts:
            for count, seconds in ran.draft_steps:
                self.costs.note(count, seconds)
            checked, right = self._texts.learn(slots, ran.drafts)
            self.drafted += checked
            self.accepted += right
        if self.costs.known:
            self._books.settle_call(len(slots), tokens, right, spent.looked_s, self.costs)

    def _note_plain(self, tokens: int, steps: int, run_s: float, loop_s: float) -> None:
        if self._free and self._plain.measures(its_turn=self._plain_turn):
            self.costs.note_plain(tokens, steps, run_s, loop_s)
            self._plain.note(run_s + loop_s)

    def _count(self, slots: Sequence[SampleSlot]) -> int:
        """Learn rates from the drafts that were checked; how many tokens of them were right."""
        before = self.accepted
        for slot in slots:
            drafted = slot.chunk.drafted
            if not drafted:
                continue
            sequence = slot.choice.sequence
            came = sequence.tokens[slot.chunk.start + slot.chunk.count :]
            right = agreeing(sequence.draft[:drafted], came)
            self.drafted += drafted
            self.accepted += right
            slot.choice.request_state.accepted_drafts += right
            slot.choice.request_state.rejected_drafts += drafted - right
            state = self._texts.known(sequence.id)
            if state is None:
                continue
            if state.rate is not None:
                state.rate.note(right, int(right < min(drafted, len(came))))
            if state.rate is not state.model_rate:
                state.note_draft(good=right > 0)
        return self.accepted - before

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        self._texts.forget(choice)
        if self._model is not None:
            self._model.forget(choice.sequence.id)

    def close(self) -> None:
        """The loop has ended: let go of the draft model and its memory."""
        self._model = None

    def _candidates(self, decoding: Sequence[ChoiceState], due: bool, watching: bool) -> list[DraftCandidate]:
        """What is forced and what is found in the texts, where these are to be looked for."""
        found: list[DraftCandidate] = []
        least = self._texts.least_kind(len(decoding), self.costs) if watching else 0
        for choice in decoding:
            forced = choice.matcher.forced_run if due and choice.matcher is not None else []
            if forced:
                found.append(DraftCandidate(choice, forced[:MAX_DRAFTED], None, 1.0))
            elif watching and (candidate := self._texts.find(choice, least)) is not None:
                found.append(candidate)
        return found

    def _with_model(
        self,
        model: DraftModel,
        decoding: list[ChoiceState],
        found: list[DraftCandidate],
        tokens: int,
        room: int,
    ) -> list[DraftCandidate]:
        """Let the model draft for the choices for which nothing better was found, if that pays: what was
        found, or its draft instead."""
        best = {candidate.choice: candidate for candidate in found}
        asked: list[ChoiceState] = []
        for choice in decoding:
            chance = best[choice].chance if choice in best else 0.0
            if chance < self._texts.state(choice).model_rate.value:
                asked.append(choice)
        depth = self._depth(model, asked, len(decoding), tokens, room)
        if depth == 0:
            return found
        self._books.charged, before_s = self._books.model, model.caught_up_s
        for choice, draft in zip(asked, model.draft(asked, depth), strict=True):
            if choice.matcher is not None and draft:
                draft = draft[: choice.matcher.fitting(draft)]
            if draft:
                rate = self._texts.state(choice).model_rate
                best[choice] = DraftCandidate(choice, draft, rate, rate.value)
        self._books.caught_up_s = model.caught_up_s - before_s
        return list(best.values())

    def _depth(self, model: DraftModel, asked: list[ChoiceState], base: int, tokens: int, room: int) -> int:
        """How many tokens the model should draft for each choice: those that make most tokens a second."""
        if not asked:
            return 0
        curve, loop_s = self.costs.curve(), self.costs.loop_s
        each_s = model.seconds(len(asked), curve[len(asked)])  # for a token of each
        chances = [self._texts.state(choice).model_rate.value for choice in asked]
        powers = list(chances)
        best, best_rate, gained = 0, base / (curve[tokens] + self.costs.plain_loop_s), float(base)
        for depth in range(1, min(MAX_MODEL_DRAFT, room // len(asked)) + 1):
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

    def _choose(self, candidates: Sequence[DraftCandidate], base: int, tokens: int, room: int) -> None:
        """Set of all drafts' tokens, likeliest first, so many as make most tokens a second."""
        taken, best = best_drafts(candidates, base, tokens, room, self.costs)
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

    def _set_draft(self, candidate: DraftCandidate) -> None:
        choice = candidate.choice
        state = self._texts.known(choice.sequence.id)
        if candidate.count:
            choice.sequence.draft = candidate.draft[: candidate.count]
            self._set.append(choice)
            if state is not None:
                state.rate = candidate.rate
        elif state is not None and candidate.rate is not None and candidate.rate is not state.model_rate:
            state.unchecked = len(choice.sequence.tokens), candidate.draft, candidate.rate
            state.note_draft(good=False)


def _announces(choice: ChoiceState) -> bool:
    """Whether it brings drafts by itself: tokens that its grammar forces, or a client's prediction."""
    return choice.matcher is not None or bool(choice.request_state.request.prediction)


def _only_decodes(slots: Sequence[SampleSlot], spent: StepTiming) -> bool:
    """Whether a step had nothing but slots, and none of them a prompt."""
    chunks = [slot.chunk for slot in slots]
    decode = all(chunk.start >= chunk.sequence.prompt_length for chunk in chunks)
    return decode and sum(chunk.length for chunk in chunks) == spent.tokens
