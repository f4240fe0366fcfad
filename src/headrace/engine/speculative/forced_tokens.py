"""Drafts of what a grammar forces: certain, and free to look up."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.request_state import ChoiceState
from headrace.engine.speculative.drafter import MAX_DRAFTED, Draft, DraftBudget
from headrace.engine.speculative.drafter_gain import DrafterGain


class ForcedTokens:
    """Most forced tokens become text without a step (ChoiceState.accept). These are the others, whose logits
    are wanted."""

    gain: DrafterGain | None = None

    def propose(self, choices: Sequence[ChoiceState], budget: DraftBudget) -> list[Draft]:
        """The run of forced tokens of each choice that has one."""
        drafts: list[Draft] = []
        for choice in choices:
            if choice.matcher is not None and (forced := choice.matcher.forced_run):
                drafts.append(Draft(self, choice, forced[:MAX_DRAFTED], 1.0))
        return drafts

    def accept(self, draft: Draft, right: int, wrong: int) -> None:
        """Nothing to learn."""

    def forget(self, choice: ChoiceState) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""
