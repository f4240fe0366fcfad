"""The cheapest cluster that keeps targets for a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from headrace.bench.serve.trace import TraceRequest
from headrace.cluster.router import Policy
from headrace.simulate.simulation import ReplicaShape, SimulationResult, SloTargets, simulate

PREFILL_PARTS = (0.25, 0.5, 0.75)
"""Of the replicas, those for prompts that are tried."""


class PlannedCluster(Struct, frozen=True, kw_only=True):
    """The fewest replicas of one kind of machine that keep the targets; None: not even the most do.
    `best` is what they reach, or the most do. Of them `prefill` read prompts for the others."""

    machine: str
    policy: Policy
    replicas: int | None
    prefill: int
    usd_per_hour: float
    best: SimulationResult


def plan_cluster(
    trace: Sequence[TraceRequest],
    machines: Mapping[str, ReplicaShape],
    policies: Sequence[Policy],
    targets: SloTargets,
    *,
    share: float,
    max_replicas: int,
    disaggregates: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[PlannedCluster]:
    """For each machine and policy, the cheapest first: `share` of the requests are within the targets. With
    `disaggregates` a part of the replicas may read prompts for the others, where that alone keeps them.
    `progress` is told of the requests of each cluster that is tried."""
    kinds: list[tuple[str, ReplicaShape, Policy]] = [
        (name, shape, policy) for name, shape in machines.items() for policy in policies
    ]
    plans: list[PlannedCluster] = []
    for name, shape, policy in kinds:
        parts = PREFILL_PARTS if disaggregates else ()
        attains = partial(_attained, trace, shape, policy, targets, share, parts, progress)
        fewest, best = _fewest(attains, share, max_replicas)
        usd = shape.usd_per_hour * (fewest or max_replicas)
        found = PlannedCluster(
            machine=name,
            policy=policy,
            replicas=fewest,
            prefill=best.prefill,
            usd_per_hour=usd,
            best=best,
        )
        plans.append(found)
    return sorted(plans, key=lambda one: (one.replicas is None, one.usd_per_hour, one.replicas or 0))


def _attained(
    trace: Sequence[TraceRequest],
    shape: ReplicaShape,
    policy: Policy,
    targets: SloTargets,
    share: float,
    parts: Sequence[float],
    progress: Callable[[int, int], None],
    replicas: int,
) -> SimulationResult:
    """With the first number of replicas for prompts that keeps the targets, or else the best."""
    best: SimulationResult | None = None
    numbers = {min(replicas - 1, max(1, round(replicas * part))) for part in parts if replicas > 1}
    for prefill in [0, *sorted(numbers)]:
        found = simulate(trace, shape, replicas, policy, prefill=prefill, targets=targets, progress=progress)
        if best is None or found.attained > best.attained:
            best = found
        if found.attained >= share:
            return found
    assert best is not None
    return best


def _fewest(
    attains: Callable[[int], SimulationResult], share: float, most: int
) -> tuple[int | None, SimulationResult]:
    """Doubling, then halving the interval: more replicas are taken to attain no less."""
    low, high = 0, 1
    while (found := attains(high)).attained < share:
        if high == most:
            return None, found
        low, high = high, min(high * 2, most)
    while high - low > 1:
        middle = (low + high) // 2
        tried = attains(middle)
        if tried.attained >= share:
            high, found = middle, tried
        else:
            low = middle
    return high, found
