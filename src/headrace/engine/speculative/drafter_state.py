"""What is known of one choice's drafts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from headrace.engine.scheduler.sequence import agreeing
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.prompt_lookup import Lookup

LONGEST_PAUSE = 16  # looks at a text, or calls that guess in it


class Drafting(Struct, eq=False):
    """What is known of one choice's drafts. `rate` is that of the draft being checked."""

    lookup: Lookup | None
    model_rate: OwnRate
    lookup_rates: dict[int, OwnRate] = field(default_factory=dict[int, OwnRate])  # by kind
    rate: OwnRate | None = None
    unchecked: tuple[int, list[int], OwnRate] | None = None  # where something did not seem to pay, and what
    taken: bool = False  # the lookup is known not to be fresh
    pause: int = 0  # looks to go without a draft
    failures: int = 0  # drafts in a row of which nothing was right, or that did not pay
    depths: list[int] | None = None  # tokens to check by kind; None: to be worked out
    depths_for: tuple[int, int] = (0, 0)  # sequences in the step, and the common depths' epoch

    def rate_of(self, kind: int, common: Rate) -> OwnRate:
        """That of lookups of a kind, whose common rate is this."""
        rate = self.lookup_rates.get(kind)
        if rate is None:
            rate = self.lookup_rates[kind] = OwnRate(common)
        return rate

    def note_draft(self, *, good: bool) -> None:
        """A draft by lookup was right in part, or neither right nor worth checking: then pause."""
        self.failures = 0 if good else self.failures + 1
        self.pause = min(LONGEST_PAUSE, (1 << self.failures) >> 2)

    def learn_unchecked(self, tokens: Sequence[int]) -> None:
        """Whether it would have been right costs nothing to see, and what never seems to pay is learned from
        nothing else."""
        if self.unchecked is None:
            return
        at, draft, rate = self.unchecked
        came = list(tokens[at : at + len(draft)])
        if came:
            right = agreeing(draft, came)
            rate.note(right, int(right < len(came)))
        self.unchecked = None
