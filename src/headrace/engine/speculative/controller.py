"""Which drafters are asked, how many of their tokens a step verifies, and what is learned from it."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Sequence

from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.sequence import State, agreeing
from headrace.engine.speculative.client_prediction import ClientPrediction
from headrace.engine.speculative.draft_model import DraftModel
from headrace.engine.speculative.draft_selection import best_drafts
from headrace.engine.speculative.drafter import Draft, DraftBudget, Drafter
from headrace.engine.speculative.forced_tokens import ForcedTokens
from headrace.engine.speculative.model_drafter import ModelDrafter
from headrace.engine.speculative.prompt_lookup import PromptLookup
from headrace.engine.speculative.step_cost_model import LARGEST, BaselineProbe, StepCosts, StepTiming
from headrace.executors.executor import NO_DRAFTS, DraftPlan, MultiStepResult

MAX_PENDING = 16  # tokens of a sequence that is still decoding: the sampled one and forced ones
MAX_SLEEP = 64  # steps, during which nothing is measured
PROBED = 7  # tokens of a draft that is verified though it does not seem to pay
_GOOD = 0.5  # probability of its first token


class SpeculationController:
    """Sets the drafts of sequences before a step, and learns from what became of them. For the loop alone.

    A drafter is asked while it pays (DrafterGain). Of its drafts those tokens are verified that make most
    tokens a second, by the rates at which such drafts were right and the times that such steps took; that
    may be none. No token ever depends on it: see SampleSlot.
    """

    def __init__(self, *, max_rows: int, model: DraftModel | None = None) -> None:
        self.drafted = self.accepted = 0
        self.costs = StepCosts()
        self.lookup = PromptLookup()
        self._max_rows = max_rows
        self._prediction = ClientPrediction()
        self._model = None if model is None else ModelDrafter(model)
        drafters = ForcedTokens(), self._prediction, self.lookup, self._model
        self._drafters: list[Drafter] = [drafter for drafter in drafters if drafter is not None]
        self._asked: list[Drafter] = []  # before this step
        self._set: dict[int, Draft] = {}  # drafts that this step verifies, by sequence id
        self._planned = False  # this call drafts by lookup
        self._several = False  # this step is expected to be a call of several
        self._baseline = BaselineProbe()
        self._asleep_until = 0  # step

    @property
    def max_steps(self) -> int:
        """How many steps may be one call: many, unless the draft model is to be asked before each."""
        model = self._model is not None and self._model in self._asked
        return 1 if model and not self._measures_baseline else sys.maxsize

    @property
    def _measures_baseline(self) -> bool:
        return self._baseline.due or not self.costs.known

    def is_asleep(self, step: int) -> bool:
        """Whether to leave speculation out of this step, because nothing may be tried: asking takes some
        hundredths of a short step, most of it for code that has left the caches."""
        return step < self._asleep_until

    def arrive(self, choices: Iterable[ChoiceState]) -> None:
        """Choices have arrived. A client's prediction may always be tried, whatever did not pay before."""
        for choice in choices:
            if choice.request_state.request.prediction:
                for drafter in (self._prediction, self.lookup):
                    assert drafter.gain is not None
                    drafter.gain.grant_trial()
            if _announces(choice):
                self._asleep_until = 0

    # -- before a step --------------------------------------------------------------------------------

    def propose(self, choices: Collection[ChoiceState], step: int, *, several: bool = False) -> None:
        """Set the drafts of the choices that are to be verified in this step. `several`: it is expected to
        be the first of a call, whose drafts `plan` says."""
        self._several, self._asked, self._planned = several, [], False
        for draft in self._set.values():
            draft.choice.sequence.draft = []
        self._set.clear()
        active = [
            drafter for drafter in self._drafters if drafter.gain is None or drafter.gain.is_active(step)
        ]
        if self._measures_baseline:
            return
        if all(drafter.gain is None for drafter in active) and not any(map(_announces, choices)):
            self._sleep(step)
            return
        if several and self._model not in active:
            self._asked = active
            return
        self._asked = active
        decoding = _decoding(choices)
        tokens = sum(choice.sequence.pending for choice in decoding)
        room = min(self._max_rows - len(decoding), LARGEST - tokens)
        if not decoding or room < 1:
            self._asked = []
            return
        found: dict[int, Draft] = {}
        budget = DraftBudget(len(decoding), tokens, room, self.costs, found)
        for drafter in active:
            began_s = time.perf_counter()
            for draft in drafter.propose(decoding, budget):
                found[draft.choice.sequence.id] = draft
            if drafter.gain is not None:
                drafter.gain.spent_s += time.perf_counter() - began_s
        if found:
            self._choose(list(found.values()), budget)

    def _sleep(self, step: int) -> None:
        rests = [drafter.gain.resting_until for drafter in self._drafters if drafter.gain is not None]
        self._asleep_until = min(*rests, step + MAX_SLEEP)

    def _choose(self, drafts: list[Draft], budget: DraftBudget) -> None:
        """Of all drafts' tokens, likeliest first, set so many as make most tokens a second."""
        indices, best = best_drafts(drafts, budget.sequences, budget.tokens, budget.room, self.costs)
        if indices and not best:
            first = drafts[indices[0]]
            if first.chance > _GOOD and first.drafter.gain is not None and first.drafter.gain.untested:
                best = min(len(indices), PROBED)  # what steps cost may have been measured at a bad moment
        for index in indices[:best]:
            drafts[index].count += 1
        for draft in drafts:
            if not draft.count:
                draft.drafter.accept(draft, 0, 0)
                continue
            draft.choice.sequence.draft = draft.tokens[: draft.count]
            self._set[draft.choice.sequence.id] = draft
            if draft.drafter.gain is not None:
                draft.drafter.gain.untested = False

    def plan(self, slots: Sequence[SampleSlot]) -> DraftPlan:
        """What a call of several steps, the first with these slots, may draft."""
        if self._measures_baseline or self.lookup not in self._asked:
            return NO_DRAFTS
        gain = self.lookup.gain
        assert gain is not None
        began_s = time.perf_counter()
        plan = self.lookup.plan(slots, min(self._max_rows, LARGEST), self.costs)
        gain.spent_s += time.perf_counter() - began_s
        self._planned = True
        return plan

    # -- after a step ---------------------------------------------------------------------------------

    def learn(self, slots: Sequence[SampleSlot], timing: StepTiming) -> None:
        """What became of the step's drafts, or of those of a call of several steps."""
        if timing.ran is None:
            self._learn_step(slots, timing)
        else:
            self._learn_call(slots, timing, timing.ran)

    def _learn_step(self, slots: Sequence[SampleSlot], timing: StepTiming) -> None:
        drafted = {slot.choice.sequence.id: slot for slot in slots if slot.chunk.drafted}
        only_decodes = timing.tokens == len(slots) or _only_decodes(slots, timing)
        right: dict[Drafter, int] = {}
        if drafted:
            self._baseline.note_drafts(timing.propose_s + timing.run_s + timing.loop_s)
            right = self._verify(drafted)
            if only_decodes:
                self.costs.note(timing.tokens, timing.run_s)
                self.costs.note_loop(timing.loop_s)
        elif only_decodes:
            # One that was expected to be part of a call bears more of the loop than others: calls say enough,
            # except where a measurement waits for it.
            if not self._several or self._measures_baseline:
                self._note_plain(timing.tokens, 1, timing.run_s, timing.loop_s)
        else:
            if self._measures_baseline:
                self._baseline.put_off()
            self.costs.note_prompt(timing.tokens, timing.run_s)
        if self._asked and self.costs.known:
            self._settle_step(slots, right)

    def _verify(self, drafted: dict[int, SampleSlot]) -> dict[Drafter, int]:
        """Learn from the drafts that were verified; how many tokens were right, by drafter."""
        counts: dict[Drafter, int] = {}
        for sequence_id, slot in drafted.items():
            sequence, verified = slot.choice.sequence, slot.chunk.drafted
            came = sequence.tokens[slot.chunk.start + slot.chunk.count :]
            right = agreeing(sequence.draft[:verified], came)
            self.drafted += verified
            self.accepted += right
            slot.choice.request_state.accepted_drafts += right
            slot.choice.request_state.rejected_drafts += verified - right
            if (draft := self._set.get(sequence_id)) is not None:
                draft.drafter.accept(draft, right, int(right < min(verified, len(came))))
                counts[draft.drafter] = counts.get(draft.drafter, 0) + right
        return counts

    def _settle_step(self, slots: Sequence[SampleSlot], right: dict[Drafter, int]) -> None:
        """Charge the drafters that were asked with what such steps take by now: a single one is disturbed too
        easily."""
        decoding = [slot.chunk for slot in slots if slot.chunk.start >= slot.chunk.sequence.prompt_length]
        drafted = sum(chunk.drafted for chunk in decoding)
        tokens = min(sum(chunk.length for chunk in decoding), LARGEST)
        if tokens <= drafted:
            return
        costs, curve = self.costs, self.costs.curve()
        plain_s, lost_s = curve[tokens - drafted] + costs.plain_loop_s, 0.0
        if drafted:
            lost_s = curve[tokens] - curve[tokens - drafted]
        if drafted or self.max_steps == 1:  # without the drafter several steps would have been one call
            lost_s += max(costs.loop_s - costs.plain_loop_s, 0.0)
        set_by: dict[Drafter, int] = {}
        for draft in self._set.values():
            set_by[draft.drafter] = set_by.get(draft.drafter, 0) + draft.count
        count = sum(set_by.values())
        for drafter in self._asked:
            if drafter.gain is not None:
                share = set_by.get(drafter, 0) / count if count else float(drafter is self._model)
                drafter.gain.settle(right.get(drafter, 0) / len(decoding), share * lost_s, plain_s)

    def _learn_call(self, slots: Sequence[SampleSlot], timing: StepTiming, ran: MultiStepResult) -> None:
        gain = self.lookup.gain
        assert gain is not None
        began_s = time.perf_counter()
        if ran.plain_steps:
            loop_s = timing.loop_s * ran.plain_steps / ran.steps
            self._note_plain(len(slots), ran.plain_steps, ran.plain_seconds, loop_s)
        right = 0
        if ran.drafts:
            for tokens, seconds in ran.draft_steps:
                self.costs.note(tokens, seconds)
            verified, right = self.lookup.learn(slots, ran.drafts)
            self.drafted += verified
            self.accepted += right
        if self._planned:
            gain.spent_s += time.perf_counter() - began_s
        if self.costs.known and (self._planned or gain.spent_s > 0):
            base_s = self.costs.seconds(len(slots))
            lost_s = sum(self.costs.seconds(tokens) - base_s for tokens, _ in ran.draft_steps)
            gain.settle(right / len(slots), lost_s, base_s + self.costs.plain_loop_s, ran.steps)

    def _note_plain(self, tokens: int, steps: int, run_s: float, loop_s: float) -> None:
        if self.max_steps > 1 and self._baseline.measures(is_due=self._measures_baseline):
            self.costs.note_plain(tokens, steps, run_s, loop_s)
            self._baseline.note(run_s + loop_s)

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        self._set.pop(choice.sequence.id, None)
        for drafter in self._drafters:
            began_s = time.perf_counter()
            drafter.forget(choice)
            if drafter.gain is not None:
                drafter.gain.spent_s += time.perf_counter() - began_s

    def close(self) -> None:
        """The loop has ended: release the draft model and its memory."""
        for drafter in self._drafters:
            drafter.close()
        self._drafters, self._model = [], None


def _announces(choice: ChoiceState) -> bool:
    """Whether it brings drafts of its own: tokens that its grammar forces, or a client's prediction."""
    return choice.matcher is not None or bool(choice.request_state.request.prediction)


def _decoding(choices: Iterable[ChoiceState]) -> list[ChoiceState]:
    decoding: list[ChoiceState] = []
    for choice in choices:
        sequence = choice.sequence
        if sequence.state is State.RUNNING and sequence.pending <= MAX_PENDING and not sequence.scores:
            decoding.append(choice)
    return decoding


def _only_decodes(slots: Sequence[SampleSlot], timing: StepTiming) -> bool:
    """Whether a step had nothing but these slots, and none of them a prompt."""
    chunks = [slot.chunk for slot in slots]
    decode = all(chunk.start >= chunk.sequence.prompt_length for chunk in chunks)
    return decode and sum(chunk.length for chunk in chunks) == timing.tokens
