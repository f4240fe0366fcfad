"""A cluster that serves a trace, by discrete events: arrivals, and ends of replicas' calls."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.serve.trace import BLOCK_TOKENS, TraceRequest
from headrace.cluster.cost_model import CostModel
from headrace.cluster.router import Capacity, Policy, RoutedRequest, Router
from headrace.cluster.simulated_replica import SimulatedReplica, SimulatedRequest, simulated_request
from headrace.errors import InvalidRequest
from headrace.kv.pages import PAGE_TOKENS

REPORT_EVERY = 1000  # requests
OWN_BLOCK_TOKENS = 4 * PAGE_TOKENS
"""Tokens per page where the trace has no blocks: more than a server's, for speed."""


class ReplicaShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica's costs and room, and what it costs. The default is made up: about a model of 8 billion
    parameters on a large accelerator."""

    step_s: float = 0.006
    prefill_s: float = 2.5e-5
    row_s: float = 5e-5
    pair_s: float = 1e-9
    kv_tokens: int = 1_536_000
    max_batch_tokens: int = 8192
    max_num_seqs: int = 256
    usd_per_hour: float = 0.0

    @property
    def costs(self) -> CostModel:
        """Of steps."""
        return CostModel(step_s=self.step_s, prefill_s=self.prefill_s, row_s=self.row_s, pair_s=self.pair_s)

    @property
    def capacity(self) -> Capacity:
        """What it has room for."""
        return Capacity(
            max_batch_tokens=self.max_batch_tokens, max_num_seqs=self.max_num_seqs, kv_tokens=self.kv_tokens
        )


class SimulatedTtft(Struct, frozen=True):
    """Seconds from arrival to the first token."""

    mean: float
    p50: float
    p95: float
    p99: float


class SimulationResult(Struct, frozen=True, kw_only=True):
    """What a cluster made of a trace. `hit_rate` is the share of the prompts' tokens that came from the
    cache, `utilization` the share of the time in which replicas computed, `tpot_s` the mean over requests,
    `throughput_tok_s` generated tokens per second from the first arrival to the last end. `attained` is the
    share of requests within the targets, 1 without. `refused` are those that fit no replica."""

    policy: Policy
    replicas: int
    requests: int
    refused: int
    ttft_s: SimulatedTtft
    tpot_s: float
    tpot_p99_s: float
    hit_rate: float
    throughput_tok_s: float
    utilization: float
    usd_per_million_tokens: float
    preemptions: int
    attained: float


class SloTargets(Struct, frozen=True, kw_only=True):
    """Seconds to the first token and per token after it; infinite where there is no target."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf

    def keeps(self, request: SimulatedRequest) -> bool:
        """Whether a request that has ended is within both."""
        return request.first_token_s - request.trace.at_s <= self.ttft_s and _tpot_s(request) <= self.tpot_s


def scaled_trace(
    trace: Sequence[TraceRequest], *, speed: float = 1.0, requests: int | None = None
) -> list[TraceRequest]:
    """The trace `speed` times as fast, its first `requests`; where it has fewer it is repeated, with other
    blocks each time."""
    count = len(trace) if requests is None else requests
    span_s = trace[-1].at_s * (1 + 1 / len(trace))
    step = 1 + max((max(one.blocks, default=0) for one in trace), default=0)
    made: list[TraceRequest] = []
    for number in range(count):
        lap, place = divmod(number, len(trace))
        one = trace[place]
        at_s = (one.at_s + lap * span_s) / speed
        blocks = tuple(block + lap * step for block in one.blocks) if lap else one.blocks
        made.append(replace(one, at_s=at_s, blocks=blocks))
    return made


def simulate(
    trace: Sequence[TraceRequest],
    shape: ReplicaShape,
    replicas: int,
    policy: Policy,
    *,
    targets: SloTargets | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SimulationResult:
    """Serve the whole trace. InvalidRequest where none of its requests fits a replica."""
    page_tokens = BLOCK_TOKENS if any(one.blocks for one in trace) else OWN_BLOCK_TOKENS
    run = _Simulation(shape, replicas, policy, page_tokens)
    for number, one in enumerate(trace):
        if number % REPORT_EVERY == 0:
            progress(number, len(trace))
        run.arrive(number, one)
    run.finish()
    progress(len(trace), len(trace))
    if not run.served:
        raise InvalidRequest(
            f"none of the {len(trace):,} requests fits a replica with kv_tokens = {shape.kv_tokens:,}: "
            "give replicas more memory"
        )
    return run.result(shape, policy, targets or SloTargets())


class _Simulation:
    def __init__(self, shape: ReplicaShape, replicas: int, policy: Policy, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._router = Router(policy, shape.costs, group_tokens=page_tokens)
        self._replicas: list[SimulatedReplica] = []
        for number in range(replicas):
            self._router.add(number, shape.capacity)
            self._replicas.append(
                SimulatedReplica(
                    shape.costs, shape.capacity, page_tokens, self._router.first_token, self._router.ended
                )
            )
        self._ends: list[tuple[float, int]] = []
        self.served: list[SimulatedRequest] = []
        self.refused = 0

    def arrive(self, number: int, one: TraceRequest) -> None:
        """A request arrives, after everything that was before."""
        self._run_until(one.at_s)
        if not self._replicas[0].fits(one.prompt_tokens + one.output_tokens):
            self.refused += 1
            return
        request = simulated_request(number, one, self._page_tokens)
        routed = RoutedRequest(
            number, one.prompt_tokens, one.blocks[: (one.prompt_tokens - 1) // self._page_tokens]
        )
        choice = self._router.choose(routed)
        self._router.sent(routed, choice)
        replica = self._replicas[choice.replica]
        before_s = replica.end_s
        replica.submit(request)
        if replica.end_s != before_s:
            heapq.heappush(self._ends, (replica.end_s, choice.replica))
        self.served.append(request)

    def finish(self) -> None:
        """Let everything end."""
        self._run_until(math.inf)

    def _run_until(self, now_s: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now_s:
            end_s, number = heapq.heappop(ends)
            replica = self._replicas[number]
            if end_s != replica.end_s:
                continue  # it ended earlier, since a request arrived
            replica.end_call()
            if replica.end_s != math.inf:
                heapq.heappush(ends, (replica.end_s, number))

    def result(self, shape: ReplicaShape, policy: Policy, targets: SloTargets) -> SimulationResult:
        served = self.served
        ttfts = np.array([one.first_token_s - one.trace.at_s for one in served])
        tpots = np.array([_tpot_s(one) for one in served if one.trace.output_tokens > 1] or [0.0])
        output = sum(one.trace.output_tokens for one in served)
        span_s = max(one.end_s for one in served) - served[0].trace.at_s
        p50, p95, p99 = np.percentile(ttfts, (50, 95, 99)).tolist()
        prompts = sum(one.trace.prompt_tokens for one in served)
        usd = shape.usd_per_hour / 3600 * span_s * len(self._replicas)
        return SimulationResult(
            policy=policy,
            replicas=len(self._replicas),
            requests=len(served),
            refused=self.refused,
            ttft_s=SimulatedTtft(float(ttfts.mean()), p50, p95, p99),
            tpot_s=float(tpots.mean()),
            tpot_p99_s=float(np.percentile(tpots, 99)),
            hit_rate=sum(one.sequence.cached_tokens for one in served) / prompts,
            throughput_tok_s=output / span_s,
            utilization=sum(one.busy_s for one in self._replicas) / span_s / len(self._replicas),
            usd_per_million_tokens=usd / output * 1e6,
            preemptions=sum(one.preemptions for one in self._replicas),
            attained=sum(map(targets.keeps, served)) / (len(served) + self.refused),
        )


def _tpot_s(request: SimulatedRequest) -> float:
    """Seconds per token after the first; 0 where there is one."""
    return (request.end_s - request.first_token_s) / max(request.trace.output_tokens - 1, 1)
