"""A simulated cluster whose number of replicas follows the load, by the server's own function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.serve.trace import BLOCK_TOKENS, TraceRequest
from headrace.cluster.router import Policy, RoutedRequest
from headrace.elastic.attainment import Attainment, LatencyTargets
from headrace.elastic.autoscaler import Observed, ScalingPolicy, ScalingState, scaled
from headrace.errors import InvalidRequest
from headrace.simulate.simulated_replica import SimulatedRequest, simulated_request
from headrace.simulate.simulation import (
    OWN_BLOCK_TOKENS,
    ReplicaShape,
    Simulation,
    SimulationResult,
    SloTargets,
)

TICK_S = 0.5
"""How often the number is decided. A server does it more often, and no load changes faster."""
MAX_SPAN_S = 100 * 86_400.0
"""Of a trace: idle time is simulated, too."""


class AutoscaledResult(Struct, frozen=True, kw_only=True):
    """What the cluster made of a trace: `served.replicas` is the most that it had at once. What they cost,
    `usd`, counts the time of starts."""

    served: SimulationResult
    mean_replicas: float
    usd: float
    starts: int


def simulate_autoscaled(
    trace: Sequence[TraceRequest],
    shape: ReplicaShape,
    policy: Policy,
    scaling: ScalingPolicy,
    *,
    cold_start_s: float,
    targets: SloTargets | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AutoscaledResult:
    """Serve the whole trace with `scaling.fewest` replicas at first, each more after `cold_start_s`.
    InvalidRequest where it takes longer than MAX_SPAN_S."""
    if trace[-1].at_s > MAX_SPAN_S:
        raise InvalidRequest(
            f"the trace takes {trace[-1].at_s / 86_400:,.0f} days, at most {MAX_SPAN_S / 86_400:g} can be "
            f"simulated where the number of replicas is decided every {TICK_S:g} s: play it faster "
            "(--speed), or its first --requests"
        )
    page_tokens = BLOCK_TOKENS if any(one.blocks for one in trace) else OWN_BLOCK_TOKENS
    run = AutoscaledSimulation(shape, policy, page_tokens, scaling, cold_start_s, targets or SloTargets())
    run.replay(trace, progress)
    return run.autoscaled_result()


class AutoscaledSimulation(Simulation):
    """All replicas that there may be are known to the router; those that do not run drain there."""

    def __init__(
        self,
        shape: ReplicaShape,
        policy: Policy,
        page_tokens: int,
        scaling: ScalingPolicy,
        cold_start_s: float,
        targets: SloTargets,
    ) -> None:
        super().__init__([shape] * scaling.most, policy, page_tokens, 0)
        self._policy: Policy = policy
        self._shape, self._targets, self._scaling_policy = shape, targets, scaling
        self._cold_start_s = cold_start_s
        self._scaling = ScalingState(scaling.fewest, 0.0)
        self._attainment = Attainment(LatencyTargets(ttft_s=targets.ttft_s, tpot_s=targets.tpot_s))
        self._running = set(range(scaling.fewest))
        self._starting: dict[int, float] = {}  # and when they run
        for number in range(scaling.fewest, scaling.most):
            self._router.drain(number)
        self._waiting: list[tuple[SimulatedRequest, RoutedRequest]] = []
        self._open: dict[int, SimulatedRequest] = {}
        self._ticked_s = self._replica_s = 0.0
        self._most, self._starts = scaling.fewest, 0

    def arrive(self, number: int, one: TraceRequest) -> None:
        """See `Simulation.arrive`."""
        self._tick_until(one.at_s)
        self._run_until(one.at_s)
        if not self._replicas[0].fits(one.prompt_tokens + one.output_tokens):
            self.refused += 1
            return
        request = simulated_request(number, one, self._page_tokens)
        self.served.append(request)
        self._open[number] = request
        routed = RoutedRequest(
            number, one.prompt_tokens, one.blocks[: (one.prompt_tokens - 1) // self._page_tokens]
        )
        if self._running:
            self._send(request, routed, self._router.choose(routed), one.at_s)
        else:
            self._waiting.append((request, routed))

    def finish(self) -> None:
        """See `Simulation.finish`."""
        while self._waiting or any(math.isnan(one.end_s) for one in self._open.values()):
            self._tick_until(self._ticked_s + TICK_S)

    def autoscaled_result(self) -> AutoscaledResult:
        """After `finish`."""
        served, usd = (
            self.result(self._policy, self._targets),
            self._replica_s / 3600 * self._shape.usd_per_hour,
        )
        tokens = sum(one.trace.output_tokens for one in self.served)
        return AutoscaledResult(
            served=replace(
                served,
                replicas=self._most,
                utilization=sum(one.busy_s for one in self._replicas) / self._replica_s,
                usd_per_million_tokens=usd / tokens * 1e6,
            ),
            mean_replicas=self._replica_s / self._ticked_s,
            usd=usd,
            starts=self._starts,
        )

    def _tick_until(self, now_s: float) -> None:
        while self._ticked_s + TICK_S <= now_s:
            self._ticked_s += TICK_S
            self._run_until(self._ticked_s)
            self._tick(self._ticked_s)
            self._replica_s += (len(self._running) + len(self._starting)) * TICK_S

    def _tick(self, now_s: float) -> None:
        for number in [one for one, ready_s in self._starting.items() if ready_s <= now_s]:
            del self._starting[number]
            self._running.add(number)
            self._router.drain(number, False)
        waiting, self._waiting = (self._waiting, []) if self._running else ([], self._waiting)
        for request, routed in waiting:
            self._send(request, routed, self._router.choose(routed), now_s)
        self._note_ended(now_s)
        self._scaling = scaled(self._scaling, self._observed(now_s), self._scaling_policy)
        self._follow(now_s)

    def _note_ended(self, now_s: float) -> None:
        for number in [one for one, request in self._open.items() if request.end_s <= now_s]:
            self._attainment.note(now_s, self._targets.keeps(self._open.pop(number)))

    def _observed(self, now_s: float) -> Observed:
        overdue = sum(
            math.isnan(one.first_token_s) and now_s - one.trace.at_s > self._targets.ttft_s
            for one in self._open.values()
        )
        return Observed(
            now_s=now_s,
            replicas=len(self._running),
            places=self._shape.max_num_seqs,
            in_flight=len(self._open),
            waiting=len(self._waiting),
            attained=self._attainment.share(now_s, overdue) if self._attainment.targets.any else None,
        )

    def _follow(self, now_s: float) -> None:
        """Start replicas that are wanted, and drain the last where one less is."""
        wanted = self._scaling.wanted
        free = [
            number
            for number in range(self._scaling_policy.most)
            if number not in self._running and number not in self._starting
        ]
        for number in free[: max(0, wanted - len(self._running) - len(self._starting))]:
            self._starting[number] = now_s + self._cold_start_s
            self._starts += 1
        if len(self._running) > wanted:
            last = max(self._running)
            self._running.remove(last)
            self._router.drain(last)
        self._most = max(self._most, len(self._running) + len(self._starting))
