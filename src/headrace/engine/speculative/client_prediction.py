"""Drafts from a client's `prediction`, as long as it comes true from its beginning."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.engine.request_state import ChoiceState
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.drafter import MAX_DRAFTED, Draft, DraftBudget
from headrace.engine.speculative.drafter_gain import DrafterGain

PRIOR = 0.95  # of a predicted token


class _Prediction(Struct):
    tokens: Sequence[int]  # empty when it has not come true
    rate: OwnRate
    followed: int = 0  # tokens that came true


class ClientPrediction:
    """Follows predictions; what comes after a difference is found by PromptLookup, where it is repeated."""

    def __init__(self) -> None:
        self.gain: DrafterGain | None = DrafterGain()
        self._rate = Rate(PRIOR)
        self._predictions: dict[int, _Prediction] = {}  # by sequence id

    def propose(self, choices: Sequence[ChoiceState], budget: DraftBudget) -> list[Draft]:
        """The rest of each prediction that has come true so far."""
        drafts: list[Draft] = []
        for choice in choices:
            if not choice.request_state.request.prediction or choice.sequence.id in budget.found:
                continue
            prediction = self._prediction(choice)
            tokens = self._rest(choice, prediction)
            if choice.matcher is not None and tokens:
                tokens = tokens[: choice.matcher.fitting(tokens)]
            if tokens:
                drafts.append(Draft(self, choice, tokens, prediction.rate.value, prediction.rate))
        return drafts

    def _prediction(self, choice: ChoiceState) -> _Prediction:
        found = self._predictions.get(choice.sequence.id)
        if found is None:
            given = choice.request_state.request.prediction
            found = self._predictions[choice.sequence.id] = _Prediction(given, OwnRate(self._rate))
        return found

    def _rest(self, choice: ChoiceState, prediction: _Prediction) -> list[int]:
        start = choice.sequence.prompt_length
        generated = len(choice.sequence.tokens) - start
        new = choice.sequence.tokens[start + prediction.followed :]
        if list(prediction.tokens[prediction.followed : generated]) != new:
            prediction.tokens = ()
        prediction.followed = generated
        return list(prediction.tokens[generated : generated + MAX_DRAFTED])

    def accept(self, draft: Draft, right: int, wrong: int) -> None:
        """Learn how often predictions come true."""
        if draft.rate is not None:
            draft.rate.note(right, wrong)

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        self._predictions.pop(choice.sequence.id, None)

    def close(self) -> None:
        """Nothing to release."""
