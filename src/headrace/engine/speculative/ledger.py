"""What looking, drafting and checking cost and saved, on the accounts of those who drafted."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.speculative.budget import SpeculationBudget
from headrace.engine.speculative.step_cost_model import LARGEST, StepCosts, StepTiming


class SpeculationLedger:
    """The accounts of lookup and of the draft model, and what the last look will be booked as."""

    __slots__ = ("_unearned", "called_s", "caught_up_s", "charged", "lookup", "model", "taken_s")

    def __init__(self) -> None:
        self.lookup, self.model = SpeculationBudget(), SpeculationBudget()
        self._unearned = 0  # steps that the accounts were not told of yet
        self.called_s = (
            0.0  # for guesses of calls, learning from them and letting go of texts, not booked yet
        )
        self.open_look()

    def open_look(self) -> None:
        """Nobody has looked for drafts yet before this call."""
        self.charged: SpeculationBudget | None = (
            None  # that of the drafter that was asked last, or whose texts a call reads
        )
        self.taken_s = self.caught_up_s = 0.0  # for prompts, by lookup and by the draft model

    @property
    def busy(self) -> bool:
        """Whether there is something to book for the last look."""
        return self.charged is not None or self.taken_s > 0 or self.caught_up_s > 0

    def ran(self, steps: int) -> None:
        """So many steps ran, with drafts or without."""
        self._unearned += steps

    def earn(self) -> None:
        """Credit the accounts with what ran."""
        for account in (self.lookup, self.model):
            account.earn(self._unearned)
        self._unearned = 0

    def write_off(self, share: float) -> None:
        """A request has ended, one of so many: what was computed for its prompt is of no more use."""
        for account in (self.lookup, self.model):
            account.write_off(share)

    def settle_call(
        self, sequences: int, tokens: Sequence[int], right: int, looked_s: float, costs: StepCosts
    ) -> None:
        """Book a call of several steps for so many sequences, of which those that checked guesses had so many
        tokens, and `right` of them came true; and the look before it."""
        self.settle_called(sequences, costs)
        if not tokens and not self.busy:
            return
        base_s = costs.seconds(sequences)
        plain_s = base_s + costs.plain_loop_s
        look_s = self._invest_prompts(looked_s, plain_s)
        if self.charged is not None:
            self.charged.note(-look_s / plain_s)
        if tokens:
            lost_s = sum(costs.seconds(count) - base_s for count in tokens)
            self.lookup.note(right / sequences - lost_s / plain_s)

    def _invest_prompts(self, looked_s: float, plain_s: float) -> float:
        """Book the prompts that were taken, which may have been after the look, for guesses of a call; the
        seconds that the look took without them."""
        self.lookup.invest(self.taken_s / plain_s)
        self.model.invest(self.caught_up_s / plain_s)
        return max(looked_s - self.taken_s - self.caught_up_s, 0.0)

    def settle_called(self, sequences: int, costs: StepCosts) -> None:
        """Book what guessing within calls took, whether a call came of it or not."""
        if self.called_s > 0:
            self.lookup.note(-self.called_s / (costs.seconds(sequences) + costs.plain_loop_s))
            self.called_s = 0.0

    def settle(
        self, slots: Sequence[SampleSlot], spent: StepTiming, right: int, costs: StepCosts, *, free: bool
    ) -> None:
        """Book the last look, of whose drafts `right` tokens came true, by what such steps take: a single one
        is disturbed too easily. `free`: without it several steps would have been one call."""
        decoding = [slot.chunk for slot in slots if slot.chunk.start >= slot.chunk.sequence.prompt_length]
        drafted = sum(chunk.drafted for chunk in decoding)
        tokens = min(sum(chunk.length for chunk in decoding), LARGEST)
        if tokens <= drafted:
            return
        curve = costs.curve()
        plain_s = curve[tokens - drafted] + costs.plain_loop_s
        lost_s = self._invest_prompts(spent.looked_s, plain_s)
        if self.charged is None:
            return
        if drafted:
            lost_s += curve[tokens] - curve[tokens - drafted]
        if drafted or not free:
            lost_s += max(costs.loop_s - spent.steps * costs.plain_loop_s, 0.0)
        self.charged.note(right / len(decoding) - lost_s / plain_s)
