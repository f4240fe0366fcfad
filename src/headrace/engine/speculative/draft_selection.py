"""How many of the drafted tokens to verify: those that make most tokens a second."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from headrace.engine.speculative.drafter import MAX_DRAFTED, Draft
from headrace.engine.speculative.step_cost_model import LARGEST, StepCosts

_DEPTHS = (1, 2, 4, 8, 16, MAX_DRAFTED)  # that are compared where nothing has been found yet
MIN_GAIN = 1.03  # rates and costs are estimates
_MIN_CHANCE = 0.02  # of a token that is considered


def best_drafts(
    drafts: Sequence[Draft], base: int, tokens: int, room: int, costs: StepCosts
) -> tuple[list[int], int]:
    """The drafted tokens, likeliest first, each as the index of its draft, and how many of them pay best in
    a step of `tokens` that brings `base` without them."""
    curve, loop_s = costs.curve(), costs.loop_s
    taken: list[int] = []
    gained, best, best_rate = float(base), 0, base / (curve[tokens] + costs.plain_loop_s)
    for index, chance in _likeliest(drafts, room):
        gained += chance
        taken.append(index)
        rate = gained / (curve[tokens + len(taken)] + loop_s)
        if rate > best_rate:
            best, best_rate = len(taken), rate
    return taken, best


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


def _likeliest(drafts: Sequence[Draft], most: int) -> Iterator[tuple[int, float]]:
    """The drafted tokens, likeliest first: the number of their draft, and their probability."""
    queue = [(-draft.chance, index, 1) for index, draft in enumerate(drafts)]
    heapq.heapify(queue)
    while queue and most > 0:
        most -= 1
        chance, index, depth = queue[0]
        yield index, -chance
        draft = drafts[index]
        if depth < len(draft.tokens) and chance * draft.chance < -_MIN_CHANCE:
            heapq.heapreplace(queue, (chance * draft.chance, index, depth + 1))
        else:
            heapq.heappop(queue)
