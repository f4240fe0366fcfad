"""What one step computes of one sequence."""

from __future__ import annotations

from msgspec import Struct

from headrace.engine.scheduler.sequence import Sequence


class ScheduledChunk(Struct, frozen=True):
    """Compute `sequence.tokens[start:start + count]`; `samples`: it ends at the last token, for logits;
    `scores`: the logits of every token from the sequence's `scored_from` on are output. After the last token
    come `drafted` ones of the sequence's draft, which are not in `count`."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    scores: bool = False
    drafted: int = 0

    @property
    def rows(self) -> int:
        """Rows of logits: of the last tokens of the chunk."""
        if self.scores:
            return max(0, self.count - max(0, self.sequence.scored_from - self.start))
        return int(self.samples) + self.drafted

    @property
    def length(self) -> int:
        """Tokens that are computed."""
        return self.count + self.drafted

    @property
    def tokens(self) -> list[int]:
        """All that is computed, the drafted ones last."""
        sequence = self.sequence
        tokens = sequence.tokens[self.start : self.start + self.count]
        return tokens + sequence.draft[: self.drafted] if self.drafted else tokens
