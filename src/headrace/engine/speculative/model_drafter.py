"""Drafts by a draft model, as many tokens as make most tokens a second."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.request_state import ChoiceState
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.draft_model import DraftModel
from headrace.engine.speculative.drafter import Draft, DraftBudget
from headrace.engine.speculative.drafter_gain import DrafterGain

PRIOR = 0.7
MAX_MODEL_DRAFT = 8


class ModelDrafter:
    """Asks the draft model for the choices for which no better draft was found."""

    def __init__(self, model: DraftModel) -> None:
        self._model: DraftModel | None = model
        self.gain: DrafterGain | None = DrafterGain()
        self._rate = Rate(PRIOR)
        self._rates: dict[int, OwnRate] = {}  # by sequence id

    def propose(self, choices: Sequence[ChoiceState], budget: DraftBudget) -> list[Draft]:
        """Nothing where it would not pay, but one token each in a trial."""
        assert self._model is not None and self.gain is not None
        asked: list[ChoiceState] = []
        for choice in choices:
            found = budget.found.get(choice.sequence.id)
            if found is None or found.chance < self._rate_of(choice).value:
                asked.append(choice)
        depth = self._depth(self._model, asked, budget)
        if depth == 0:
            if asked and budget.room >= len(asked):
                self.gain.rest()
            return []
        before_s = self._model.caught_up_s
        drafts: list[Draft] = []
        for choice, tokens in zip(asked, self._model.draft(asked, depth), strict=True):
            if choice.matcher is not None and tokens:
                tokens = tokens[: choice.matcher.fitting(tokens)]
            if tokens:
                rate = self._rate_of(choice)
                drafts.append(Draft(self, choice, tokens, rate.value, rate))
        self.gain.prompt_s += self._model.caught_up_s - before_s
        return drafts

    def _rate_of(self, choice: ChoiceState) -> OwnRate:
        rate = self._rates.get(choice.sequence.id)
        if rate is None:
            rate = self._rates[choice.sequence.id] = OwnRate(self._rate)
        return rate

    def _depth(self, model: DraftModel, asked: Sequence[ChoiceState], budget: DraftBudget) -> int:
        """How many tokens to draft for each choice: those that make most tokens a second."""
        if not asked or budget.room < len(asked):
            return 0
        costs = budget.costs
        curve, loop_s = costs.curve(), costs.loop_s
        each_s = model.seconds(len(asked), curve[len(asked)])  # for a token of each
        chances = [self._rate_of(choice).value for choice in asked]
        powers, gained = list(chances), float(budget.sequences)
        best, best_rate = 0, gained / (curve[budget.tokens] + costs.plain_loop_s)
        for depth in range(1, min(MAX_MODEL_DRAFT, budget.room // len(asked)) + 1):
            gained += sum(powers)
            powers = [power * chance for power, chance in zip(powers, chances, strict=True)]
            seconds = curve[budget.tokens + depth * len(asked)] + depth * each_s
            if gained / (seconds + loop_s) > best_rate:
                best, best_rate = depth, gained / (seconds + loop_s)
        assert self.gain is not None
        return 1 if best == 0 and self.gain.untested else best

    def accept(self, draft: Draft, right: int, wrong: int) -> None:
        """Learn how often the model is right."""
        if draft.rate is not None and draft.count:
            draft.rate.note(right, wrong)

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        if self._rates.pop(choice.sequence.id, None) is not None and self._model is not None:
            self._model.forget(choice.sequence.id)
            assert self.gain is not None
            self.gain.write_off(1 / (1 + len(self._rates)))

    def close(self) -> None:
        """Release the model and its memory."""
        self._model = None
