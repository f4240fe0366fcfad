"""What steps of a replica cost: the line that the engine fits, with coefficients that are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from headrace.engine.pacing import DEFAULT_TPOT_S, MIN_PREFILL_TOKENS, MIN_SHARE
from headrace.engine.step_times import StepTimes, StepWork, attended


class CostModel(Struct, frozen=True, kw_only=True):
    """Seconds of a step = step_s + prefill_s per token of prompts + row_s per sequence that generates
    + pair_s per pair of tokens of which one attends to the other (engine/step_times.py)."""

    step_s: float
    prefill_s: float
    row_s: float
    pair_s: float

    @classmethod
    def of(cls, fitted: tuple[float, float, float, float]) -> CostModel:
        """As an engine publishes it (EngineStatus.step_costs)."""
        step_s, prefill_s, row_s, pair_s = fitted
        return cls(step_s=step_s, prefill_s=prefill_s, row_s=row_s, pair_s=pair_s)

    @classmethod
    def mean(cls, models: Sequence[CostModel]) -> CostModel:
        """Of several machines."""
        return cls(
            step_s=fmean(one.step_s for one in models),
            prefill_s=fmean(one.prefill_s for one in models),
            row_s=fmean(one.row_s for one in models),
            pair_s=fmean(one.pair_s for one in models),
        )

    @property
    def is_possible(self) -> bool:
        """Whether a machine can have these: what a replica publishes may be anything."""
        return all(0 <= one < math.inf for one in (self.step_s, self.prefill_s, self.row_s, self.pair_s))

    def seconds(self, work: StepWork) -> float:
        """Of one step."""
        tokens = self.prefill_s * work.prefill + self.row_s * work.rows
        return self.step_s + tokens + self.pair_s * work.pairs

    def prompt_s(self, tokens: int, start: int, streams: int, seen: int, most: int) -> float:
        """To read so many tokens of a prompt that come after `start` others, in steps of `most` at most,
        beside `streams` which attend to `seen` tokens: the engine shortens steps for these."""
        if tokens <= 0:
            return 0.0
        pairs_s = self.pair_s * attended(start, tokens)
        decode_s = self.seconds(StepWork(0, streams, seen))
        step_tokens = most
        if streams:
            limit_s = max(DEFAULT_TPOT_S, MIN_SHARE * decode_s) - decode_s
            token_s = self.prefill_s + pairs_s / tokens
            step_tokens = max(MIN_PREFILL_TOKENS, min(most, int(limit_s / token_s) if token_s else most))
        steps = math.ceil(tokens / step_tokens)
        return steps * decode_s + self.prefill_s * tokens + pairs_s


class GivenStepTimes(StepTimes):
    """StepTimes that were fitted before and learn nothing."""

    __slots__ = ("_given",)

    def __init__(self, costs: CostModel) -> None:
        super().__init__()
        self._given = costs

    @property
    def known(self) -> bool:
        """Always."""
        return True

    @property
    def any_known(self) -> bool:
        """Always."""
        return True

    def note(self, work: StepWork, seconds: float) -> None:
        """Nothing is learned."""

    def _coefficients(self) -> tuple[float, float, float, float]:
        given = self._given
        return given.step_s, given.prefill_s, given.row_s, given.pair_s
