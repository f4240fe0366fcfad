"""What each of several levers saves, where they overlap: Shapley values over a cost of any set of levers.

A lever's value is what it saves on average over all orders in which the levers could be switched on. The
values sum to what all levers save together; what vendors quote ("alone") sums to more, an ablation
("removed") to less. A lever that does nothing, which every measurement should include, gets 0, or the noise
of the measurement. Sources: Shapley, "A value for n-person games", 1953; antithetic permutations: Mitchell
et al., JMLR 23, 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import InvalidRequest

Levers = frozenset[str]
Cost = Callable[[Levers], int]
"""Nano-dollars that the same traffic costs with exactly these levers on."""
MAX_EXACT = 12
"""Levers of which all sets are measured: 4,096 costs."""
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145),
    *(2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048),
    *(2.045, 2.042),
)
"""The 97.5 % quantile of Student's t with 1, 2, … 30 degrees of freedom."""


class LeverValue(Struct, frozen=True, kw_only=True):
    """What a lever saves, nano-dollars: its Shapley value with the half width of its 95 % interval, what it
    saves alone, and what is lost where only it is switched off."""

    name: str
    saves: Fraction
    half_width: float
    alone: int
    removed: int


class Attribution(Struct, frozen=True, kw_only=True):
    """The levers in the order given. `total` is what all save together, `base` the cost without any; of
    sampled values it is the mean over the permutations, and the values sum to it exactly."""

    levers: tuple[LeverValue, ...]
    base: Fraction
    total: Fraction
    costs_measured: int


def shapley_values(levers: Sequence[str], cost: Cost) -> Attribution:
    """Exact values of at most MAX_EXACT levers, by the costs of all their sets, each measured once."""
    names = _checked(levers)
    if len(names) > MAX_EXACT:
        raise InvalidRequest(
            f"{len(names)} levers have {2 ** len(names):,} sets: sample permutations of more than {MAX_EXACT}"
        )
    costs = {
        frozenset(some): cost(frozenset(some))
        for size in range(len(names) + 1)
        for some in combinations(names, size)
    }
    everything = frozenset(names)
    found = [
        LeverValue(
            name=name,
            saves=_value(name, everything, costs),
            half_width=0.0,
            alone=costs[frozenset()] - costs[frozenset([name])],
            removed=costs[everything - {name}] - costs[everything],
        )
        for name in names
    ]
    base = Fraction(costs[frozenset()])
    return Attribution(
        levers=tuple(found), base=base, total=base - costs[everything], costs_measured=len(costs)
    )


def sampled_shapley_values(levers: Sequence[str], cost: Cost, *, pairs: int, seed: int = 0) -> Attribution:
    """Values by `pairs` of random orders, each beside its reverse, so that what one lever gains early it
    loses late. Costs are measured anew each time: where measuring is noisy, the intervals contain that
    noise."""
    names = _checked(levers)
    if pairs < 2:
        raise InvalidRequest(f"{pairs} pairs of orders have no interval: at least 2", param="pairs")
    generator = np.random.default_rng(seed)
    means: list[dict[str, Fraction]] = []
    bases: list[Fraction] = []
    for _ in range(pairs):
        places: list[int] = generator.permutation(len(names)).tolist()
        order = [names[place] for place in places]
        both = [_savings(each, cost) for each in (order, order[::-1])]
        means.append({name: sum((saved[name] for _, saved in both), Fraction()) / 2 for name in names})
        bases.append(sum((Fraction(base) for base, _ in both), Fraction()) / 2)
    alone = {name: cost(frozenset()) - cost(frozenset([name])) for name in names}
    everything = frozenset(names)
    removed = {name: cost(everything - {name}) - cost(everything) for name in names}
    found: list[LeverValue] = []
    for name in names:
        values = [mean[name] for mean in means]
        found.append(
            LeverValue(
                name=name,
                saves=sum(values, Fraction()) / pairs,
                half_width=_half_width([float(value) for value in values]),
                alone=alone[name],
                removed=removed[name],
            )
        )
    return Attribution(
        levers=tuple(found),
        base=sum(bases, Fraction()) / pairs,
        total=sum((one.saves for one in found), Fraction()),
        costs_measured=2 * pairs * (len(names) + 1) + 4 * len(names),
    )


def shapley_parts(
    levers: Sequence[str], costs: Callable[[Levers], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Values [levers, requests] of what each request costs [requests]. A value is linear in the costs, so the
    parts of a lever sum to its value, and resampling requests gives the interval of that."""
    names, table, sizes = _table(levers, costs)
    count = len(names)
    weights = np.array([1 / (count * math.comb(count - 1, size)) for size in range(count)])
    masks = np.arange(2**count, dtype=np.int64)
    found: list[NDArray[np.float64]] = []
    for place in range(count):
        off = masks[masks >> place & 1 == 0]
        found.append(weights[sizes[off]] @ (table[off] - table[off | 1 << place]))
    return np.array(found)


def interactions(levers: Sequence[str], cost: Cost) -> dict[tuple[str, str], float]:
    """Of each pair, the mean of what both together save beyond the sum of each, over all sets of others:
    below 0 where they save the same. The interaction index of Grabisch and Roubens, 1999."""
    names, table, sizes = _table(levers, lambda some: np.array([float(cost(some))]))
    count = len(names)
    masks = np.arange(2**count, dtype=np.int64)
    found: dict[tuple[str, str], float] = {}
    for one, other in combinations(range(count), 2):
        off = masks[(masks >> one & 1 == 0) & (masks >> other & 1 == 0)]
        weights = np.array([1 / ((count - 1) * math.comb(count - 2, size)) for size in sizes[off]])
        left, right = 1 << one, 1 << other
        both = table[off | left] + table[off | right] - table[off] - table[off | left | right]
        found[names[one], names[other]] = float(weights @ both[:, 0])
    return found


def _table(
    levers: Sequence[str], costs: Callable[[Levers], NDArray[np.float64]]
) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.int64]]:
    """Costs of all sets, by the bits of their levers, and how many levers each set has."""
    names = _checked(levers)
    sets = [
        frozenset(name for place, name in enumerate(names) if bits >> place & 1)
        for bits in range(2 ** len(names))
    ]
    return names, np.array([costs(some) for some in sets]), np.array([len(some) for some in sets])


def _checked(levers: Sequence[str]) -> tuple[str, ...]:
    if not levers or len(set(levers)) != len(levers):
        raise InvalidRequest(f"levers are {list(levers)}: they must be there and differ", param="levers")
    return tuple(levers)


def _value(name: str, everything: Levers, costs: dict[Levers, int]) -> Fraction:
    """The mean of what a lever saves beyond each set of others, each size of a set counting as much."""
    others, count = sorted(everything - {name}), len(everything)
    total = Fraction()
    for size in range(count):
        saved = sum(
            costs[frozenset(some)] - costs[frozenset([*some, name])] for some in combinations(others, size)
        )
        total += Fraction(saved, math.comb(count - 1, size))
    return total / count


def _savings(order: Sequence[str], cost: Cost) -> tuple[int, dict[str, Fraction]]:
    """The cost without levers, and what each saves where they are switched on in this order."""
    base = before = cost(frozenset())
    saved: dict[str, Fraction] = {}
    for place, name in enumerate(order, 1):
        after = cost(frozenset(order[:place]))
        saved[name] = Fraction(before - after)
        before = after
    return base, saved


def _half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of a mean, by Student's t."""
    freedom = len(values) - 1
    quantile = _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96 + 2.4 / freedom
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
