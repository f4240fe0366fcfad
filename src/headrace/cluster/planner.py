"""The cheapest cluster that keeps targets for a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from headrace.bench.serve.trace import TraceRequest
from headrace.cluster.router import Policy
from headrace.cluster.simulation import ReplicaShape, SimulationResult, SloTargets, simulate


class PlannedCluster(Struct, frozen=True, kw_only=True):
    """The fewest replicas of one kind of machine that keep the targets; None: not even the most do.
    `best` is what they reach, or the most do."""

    machine: str
    policy: Policy
    replicas: int | None
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[PlannedCluster]:
    """For each machine and policy, the cheapest first: `share` of the requests are within the targets."""
    kinds: list[tuple[str, ReplicaShape, Policy]] = [
        (name, shape, policy) for name, shape in machines.items() for policy in policies
    ]
    plans: list[PlannedCluster] = []
    for done, (name, shape, policy) in enumerate(kinds):
        progress(done, len(kinds))
        fewest, best = _fewest(partial(_attained, trace, shape, policy, targets), share, max_replicas)
        usd = shape.usd_per_hour * (fewest or max_replicas)
        plans.append(
            PlannedCluster(machine=name, policy=policy, replicas=fewest, usd_per_hour=usd, best=best)
        )
    progress(len(kinds), len(kinds))
    return sorted(plans, key=lambda one: (one.replicas is None, one.usd_per_hour, one.replicas or 0))


def _attained(
    trace: Sequence[TraceRequest],
    shape: ReplicaShape,
    policy: Policy,
    targets: SloTargets,
    replicas: int,
) -> SimulationResult:
    return simulate(trace, shape, replicas, policy, targets=targets)


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
