"""Of drafts and what steps cost: how many of the drafted tokens make most tokens a second."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from msgspec import Struct

from headrace.engine.request_state import ChoiceState
from headrace.engine.speculative.acceptance import OwnRate
from headrace.engine.speculative.step_cost_model import LARGEST, StepCosts

MAX_DRAFTED = 31  # of one sequence
_DEPTHS = (1, 2, 4, 8, 16, MAX_DRAFTED)  # that are compared where nothing has been found yet
MIN_GAIN = 1.03  # rates and costs are estimates, and what is guessed has to be learned from
_LEAST = 0.02  # probability of a token that is worth being looked at


class DraftCandidate(Struct, eq=False):
    """A draft for a choice, each of its tokens right with the probability `chance` if those before it are;
    `count` of them are to be checked. `rate` is None for what is forced."""

    choice: ChoiceState
    draft: list[int]
    rate: OwnRate | None
    chance: float
    count: int = 0


def best_drafts(
    candidates: Sequence[DraftCandidate], base: int, tokens: int, room: int, costs: StepCosts
) -> tuple[list[int], int]:
    """The candidates' drafted tokens, likeliest first, as numbers of their candidates, and how many of these
    pay best in a step of `tokens` that brings `base` without them."""
    curve, loop_s = costs.curve(), costs.loop_s
    taken: list[int] = []
    gained, best, best_rate = float(base), 0, base / (curve[tokens] + costs.plain_loop_s)
    for index, chance in _likeliest(candidates, room):
        gained += chance
        taken.append(index)
        rate = gained / (curve[tokens + len(taken)] + loop_s)
        if rate > best_rate:
            best, best_rate = len(taken), rate
    return taken, best


def pays(chance: float, base: int, costs: StepCosts) -> bool:
    """Whether drafts whose tokens are right with this probability are worth checking beside `base` tokens."""
    curve, loop_s = costs.curve(), costs.loop_s
    base = min(base, LARGEST)
    plain = base / (curve[base] + costs.plain_loop_s)
    return any(
        (base + sum(chance**k for k in range(1, depth + 1))) / (curve[base + depth] + loop_s) > plain
        for depth in _DEPTHS
        if base + depth <= LARGEST
    )


def best_depth(chance: float, base: int, costs: StepCosts) -> int:
    """How many tokens, each right with this probability, make most tokens a second beside `base` in one of
    several steps of a call; 0 where none make some more than without."""
    curve, loop_s = costs.curve(), costs.plain_loop_s
    base = min(base, LARGEST)
    best, best_rate = 0, MIN_GAIN * base / (curve[base] + loop_s)
    for depth in _DEPTHS:
        if base + depth <= LARGEST:
            right = chance * (1 - chance**depth) / (1 - chance) if chance < 1 else depth
            rate = (base + right) / (curve[base + depth] + loop_s)
            if rate > best_rate:
                best, best_rate = depth, rate
    return best


def _likeliest(candidates: Sequence[DraftCandidate], most: int) -> Iterator[tuple[int, float]]:
    """The drafted tokens, likeliest first: the number of their candidate, and their probability."""
    queue = [(-candidate.chance, index, 1) for index, candidate in enumerate(candidates)]
    heapq.heapify(queue)
    while queue and most > 0:
        most -= 1
        chance, index, depth = queue[0]
        yield index, -chance
        candidate = candidates[index]
        if depth < len(candidate.draft) and chance * candidate.chance < -_LEAST:
            heapq.heapreplace(queue, (chance * candidate.chance, index, depth + 1))
        else:
            heapq.heappop(queue)
