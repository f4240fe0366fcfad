"""The bill of recorded traffic with the parts of its savings: values of levers with intervals, in money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.economy.levers import LOSSY, NOOP, LeverGame
from headrace.economy.shapley import Levers, interactions, shapley_parts, shapley_values
from headrace.errors import InvalidRequest

RESAMPLES = 2000
PAIRS_SHOWN = 3


class LeverQuality(Struct, frozen=True, kw_only=True):
    """What a lossy lever does to answers: of `count` answers that it gave `worse` were wrong (or differed);
    `upper` bounds that rate with 95 % confidence, by these answers or by labels from before; `bound` is what
    is allowed. `measure` says what was compared."""

    measure: str
    count: int
    worse: int
    upper: float
    bound: float

    @property
    def rate(self) -> float:
        """The share that was worse."""
        return self.worse / self.count if self.count else 0.0


class LeverLine(Struct, frozen=True, kw_only=True):
    """One lever: what it saves, in nano-dollars and with the limits of the 95 % interval as shares of the
    cost without levers; what it saves alone, and what is lost without it; the cost when it is switched on
    after those before it."""

    name: str
    saves_nano: int
    low: float
    high: float
    alone_nano: int
    removed_nano: int
    stacked_nano: int
    quality: LeverQuality | None = None


class LeverPair(Struct, frozen=True):
    """Two levers, and what both save beyond the sum of each, as a share of the cost without levers."""

    one: str
    other: str
    share: float


class LeverBill(Struct, frozen=True, kw_only=True):
    """The lines' savings sum to base_nano - total_nano exactly."""

    base_nano: int
    total_nano: int
    low: float
    high: float
    lines: tuple[LeverLine, ...]
    pairs: tuple[LeverPair, ...]
    requests: int
    simulated: int

    @property
    def saved(self) -> float:
        """The share that all levers save together."""
        return 1 - self.total_nano / self.base_nano if self.base_nano else 0.0


def lever_bill(
    levers: Sequence[str], game: LeverGame, qualities: Mapping[str, LeverQuality], *, seed: int = 0
) -> LeverBill:
    """Values of at most MAX_EXACT levers. Raises InvalidRequest for a lossy lever without its quality: how
    much it saves says nothing while it is not known what it does to answers."""
    missing = [name for name in levers if name in LOSSY and name not in qualities]
    if missing:
        raise InvalidRequest(
            f"{', '.join(missing)} may change answers and has no measured quality: measure it, or leave out "
            "the lever",
            param="levers",
        )
    found = shapley_values(levers, game.cost)
    parts = shapley_parts(levers, lambda some: game.run(some).by_call)
    base = game.run(frozenset()).by_call
    drawn = shapley_parts(levers, lambda some: game.run(some).draws), game.run(frozenset()).draws
    limits = _limits(parts, base, drawn, seed)
    saved = _whole([one.saves for one in found.levers], int(found.total))
    stacked = _stacked(levers, game)
    lines = [
        LeverLine(
            name=one.name,
            saves_nano=saved[place],
            low=float(limits[0][place]),
            high=float(limits[1][place]),
            alone_nano=one.alone,
            removed_nano=one.removed,
            stacked_nano=stacked[place],
            quality=qualities.get(one.name),
        )
        for place, one in enumerate(found.levers)
    ]
    whole = drawn[0].sum(axis=0, keepdims=True), drawn[1]
    low, high = _limits(parts.sum(axis=0, keepdims=True), base, whole, seed)
    return LeverBill(
        base_nano=int(found.base),
        total_nano=int(found.base - found.total),
        low=float(low[0]),
        high=float(high[0]),
        lines=tuple(lines),
        pairs=_pairs(levers, game, int(found.base)),
        requests=len(base),
        simulated=game.simulated,
    )


def _stacked(levers: Sequence[str], game: LeverGame) -> list[int]:
    """The cost with the first lever, the first two, and so on."""
    return [game.cost(frozenset(levers[: place + 1])) for place in range(len(levers))]


def _pairs(levers: Sequence[str], game: LeverGame, base: int) -> tuple[LeverPair, ...]:
    """The pairs that depend most on each other."""
    found = interactions(levers, game.cost) if base else {}
    most = sorted(found.items(), key=lambda entry: -abs(entry[1]))[:PAIRS_SHOWN]
    return tuple(LeverPair(one, other, value / base) for (one, other), value in most)


def _limits(
    parts: NDArray[np.float64],
    base: NDArray[np.float64],
    drawn: tuple[NDArray[np.float64], NDArray[np.float64]],
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 95 % interval of each row's share of the base: requests are resampled, and what draws of the speeds
    (parts [levers, draws] and base [draws]) would change is added. Both errors are independent."""
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(len(base), np.full(len(base), 1 / len(base)), size=RESAMPLES)
    shares = (counts @ parts.T) / (counts @ base)[:, None]
    if drawn[1].size:
        changes = (drawn[0] / drawn[1] - (parts.sum(axis=1) / base.sum())[:, None]).T
        shares += changes[np.arange(RESAMPLES) % len(changes)]
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    return low, high


def _whole(values: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers that sum to the total: rounded down, and the largest remainders one up."""
    floors = [value.numerator // value.denominator for value in values]
    order = sorted(range(len(values)), key=lambda place: floors[place] - values[place])
    for place in order[: total - sum(floors)]:
        floors[place] += 1
    return floors


def without(levers: Sequence[str], absent: Levers) -> tuple[str, ...]:
    """The levers but some, the no-op always among them."""
    kept = [name for name in levers if name not in absent and name != NOOP]
    return (*kept, NOOP)
