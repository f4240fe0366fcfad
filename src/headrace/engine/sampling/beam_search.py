"""Beam search over lists of likely next tokens: which beams live on, which have finished, when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field

from headrace.engine.request import TokenLogprob

EarlyStopping = bool | Literal["never"]
Candidates = Sequence[tuple[int, float]]
"""Tokens with their log-probabilities, likeliest first."""


class Beam(Struct, frozen=True):
    """Generated tokens, the sum of their log-probabilities, and which of the beams before it goes on."""

    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    parent: int = 0


class BeamSearch(Struct, kw_only=True):
    """The rules of transformers' `generate(num_beams=width)`, for one prompt.

    A beam's score is its log-probability / length ** length_penalty. It is over when `width` beams have
    finished and `early_stopping` is True, or no live beam can get a better score than theirs: by the length
    that it has now, or where `early_stopping` is "never" and long texts are favored, the longest that it may
    get; or at `max_tokens`. Equal candidates: the earlier beam's first, then the likelier, then the lower id.
    """

    width: int
    max_tokens: int
    min_tokens: int
    stop_ids: frozenset[int]
    length_penalty: float
    early_stopping: EarlyStopping
    tops: int | None  # alternatives to keep of each token; None: no log-probabilities at all
    live: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[tuple[float, Beam]] = field(default_factory=list[tuple[float, Beam]])  # best first
    over: bool = False

    @property
    def kept(self) -> int:
        """How many candidates are looked at of all beams, so that `width` are left that are no ends."""
        return max(2, 1 + len(self.stop_ids)) * self.width

    @property
    def wanted(self) -> int:
        """How many candidates `advance` needs of each beam, while there are so many."""
        return max(self.kept + len(self.stop_ids), self.tops or 0)

    def advance(self, candidates: Sequence[Candidates]) -> None:
        """Extend each live beam by its candidates: `live` are those that continue."""
        length = len(self.live[0].tokens) + 1
        grown = sorted(
            (
                (beam.logprob + logprob, index, token, logprob)
                for index, beam in enumerate(self.live)
                for token, logprob in candidates[index]
                if length > self.min_tokens or token not in self.stop_ids
            ),
            key=lambda entry: (-entry[0], entry[1]),  # stable
        )[: self.kept]
        beams: list[Beam] = []
        ended: list[tuple[float, Beam]] = []
        for place, (total, parent, token, logprob) in enumerate(grown):
            ends = token in self.stop_ids or length >= self.max_tokens
            if not ends and len(beams) < self.width:
                beams.append(self._grown(parent, token, logprob, total, candidates[parent]))
            elif ends and place < self.width and not (self.early_stopping is True and self._full):
                beam = self._grown(parent, token, logprob, total, candidates[parent])
                ended.append((total / length**self.length_penalty, beam))
        self.finished = sorted([*self.finished, *ended], key=lambda entry: -entry[0])[: self.width]
        self.live = beams
        self.over = not beams or (self._full and (self.early_stopping is True or not self._hopeful(length)))

    @property
    def _full(self) -> bool:
        return len(self.finished) == self.width

    def _hopeful(self, length: int) -> bool:
        """Whether the best live beam might still become better than the worst finished one."""
        if self.early_stopping == "never" and self.length_penalty > 0.0:
            length = self.max_tokens
        return self.live[0].logprob / length**self.length_penalty > self.finished[-1][0]

    def _grown(self, parent: int, token: int, logprob: float, total: float, candidates: Candidates) -> Beam:
        beam = self.live[parent]
        logprobs = beam.logprobs
        if self.tops is not None:
            logprobs = (*logprobs, TokenLogprob(token, logprob, tuple(candidates[: self.tops])))
        return Beam((*beam.tokens, token), total, logprobs, parent)
