"""A cluster that serves a trace, by discrete events: arrivals, ends of replicas' calls, pages that arrive."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.serve.trace import BLOCK_TOKENS, TraceRequest
from headrace.cluster.cost_model import CostModel
from headrace.cluster.disaggregation import MoveCosts, plan_prefill
from headrace.cluster.router import Capacity, Policy, RoutedRequest, Router, RoutingChoice
from headrace.errors import InvalidRequest
from headrace.kv.pages import PAGE_TOKENS
from headrace.simulate.simulated_machine import SimulatedMachine
from headrace.simulate.simulated_replica import SimulatedReplica, SimulatedRequest, simulated_request

REPORT_EVERY = 1000  # requests
OWN_BLOCK_TOKENS = 4 * PAGE_TOKENS
"""Tokens per page where the trace has no blocks: more than a server's, for speed."""
MAX_PAGES = 64_000_000
"""Of all replicas: each takes about 50 bytes."""


class ReplicaShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica's costs and room, and what it costs. The default is made up: about a model of 8 billion
    parameters on a large accelerator.

    Of the replicas of one machine, `per_machine`, each has `speeds` while one, two, ... compute, relative to
    one alone. `reply_s` is the way to the replica and back. Pages go to another replica in `move_s` and
    `move_token_s` per token (`MoveCosts`).
    """

    step_s: float = 0.006
    prefill_s: float = 2.5e-5
    row_s: float = 5e-5
    pair_s: float = 1e-9
    kv_tokens: int = 1_536_000
    max_batch_tokens: int = 8192
    max_num_seqs: int = 256
    usd_per_hour: float = 0.0
    per_machine: int = 1
    speeds: tuple[float, ...] = (1.0,)
    reply_s: float = 0.0
    move_s: float = 0.002
    move_token_s: float = 1e-5

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
    share of requests within the targets, 1 without. `refused` are those that fit no replica. Where `prefill`
    replicas read prompts for the others, `apart` is the share of requests that they have read."""

    policy: Policy
    replicas: int
    requests: int
    refused: int
    ttft_s: SimulatedTtft
    tpot_s: float
    tpot_p95_s: float
    tpot_p99_s: float
    hit_rate: float
    throughput_tok_s: float
    utilization: float
    usd_per_million_tokens: float
    preemptions: int
    attained: float
    prefill: int = 0
    apart: float = 0.0


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
    prefill: int = 0,
    block_tokens: int | None = None,
    targets: SloTargets | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SimulationResult:
    """Serve the whole trace. The first `prefill` replicas read prompts for the others. `block_tokens` are
    those of a block of the trace where it is no original. InvalidRequest where no request fits a replica."""
    return simulate_shapes(
        *(trace, [shape] * replicas, policy),
        prefill=prefill,
        block_tokens=block_tokens,
        targets=targets,
        progress=progress,
    )


def simulate_shapes(
    trace: Sequence[TraceRequest],
    shapes: Sequence[ReplicaShape],
    policy: Policy,
    *,
    prefill: int = 0,
    block_tokens: int | None = None,
    targets: SloTargets | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SimulationResult:
    """As `simulate`, with replicas of several kinds."""
    has_blocks = any(one.blocks for one in trace)
    page_tokens = block_tokens or (BLOCK_TOKENS if has_blocks else OWN_BLOCK_TOKENS)
    run = Simulation(shapes, policy, page_tokens, prefill)
    run.replay(trace, progress)
    return run.result(policy, targets or SloTargets())


class Simulation:
    """Replicas and their router; `replay` gives them a trace: `arrive` for each request, then `finish`."""

    def __init__(
        self, shapes: Sequence[ReplicaShape], policy: Policy, page_tokens: int, prefill: int
    ) -> None:
        _check_pages(shapes, page_tokens)
        self._shapes, self._page_tokens = shapes, page_tokens
        self._router = Router(policy, shapes[0].costs, group_tokens=page_tokens)
        self._replicas: list[SimulatedReplica] = []
        self._machines: list[SimulatedMachine] = []
        self._where: list[int] = []  # the machine of each replica
        self._readers, self._decoders = frozenset(range(prefill)), frozenset(range(prefill, len(shapes)))
        self._add_replicas()
        self._smallest = min(range(len(shapes)), key=lambda number: shapes[number].kv_tokens)
        self._ends: list[tuple[float, int]] = []  # of machines' calls
        self._pages: list[tuple[float, int]] = []  # when those of requests arrive
        self._reading: dict[int, tuple[SimulatedRequest, RoutingChoice, RoutedRequest]] = {}
        self.served: list[SimulatedRequest] = []
        self.refused = 0

    def _add_replicas(self) -> None:
        differ = any(shape != self._shapes[0] for shape in self._shapes)
        for number, shape in enumerate(self._shapes):
            self._router.add(number, shape.capacity)
            if differ:
                self._router.measured(number, shape.costs)
            on_first, on_end = self._router.first_token, self._router.ended
            if number in self._readers:
                on_first, on_end = _ignore, self._read
            replica = SimulatedReplica(
                *(shape.costs, shape.capacity, self._page_tokens, on_first, on_end), reply_s=shape.reply_s
            )
            last = self._machines[-1].replicas if self._machines else []
            if not last or len(last) == shape.per_machine or shape is not self._shapes[number - 1]:
                self._machines.append(SimulatedMachine(shape.speeds))
            self._machines[-1].replicas.append(replica)
            self._where.append(len(self._machines) - 1)
            self._replicas.append(replica)

    def replay(self, trace: Sequence[TraceRequest], progress: Callable[[int, int], None]) -> None:
        """All requests of a trace. InvalidRequest where no replica has room for any of them."""
        for number, one in enumerate(trace):
            if number % REPORT_EVERY == 0:
                progress(number, len(trace))
            self.arrive(number, one)
        self.finish()
        progress(len(trace), len(trace))
        if not self.served:
            least = min(shape.kv_tokens for shape in self._shapes)
            raise InvalidRequest(
                f"none of the {len(trace):,} requests fits a replica with kv_tokens = {least:,}: "
                "give replicas more memory"
            )

    def arrive(self, number: int, one: TraceRequest) -> None:
        """A request arrives, after everything that was before."""
        self._run_until(one.at_s)
        if not self._replicas[self._smallest].fits(one.prompt_tokens + one.output_tokens):
            self.refused += 1
            return
        request = simulated_request(number, one, self._page_tokens)
        self.served.append(request)
        keys = one.blocks[: (one.prompt_tokens - 1) // self._page_tokens]
        routed = RoutedRequest(number, one.prompt_tokens, keys)
        if not (self._readers and self._reads_apart(request, routed)):
            self._send(request, routed, self._router.choose(routed, self._readers), one.at_s)

    def finish(self) -> None:
        """Let everything end."""
        self._run_until(math.inf)

    def _send(
        self, request: SimulatedRequest, routed: RoutedRequest, choice: RoutingChoice, at_s: float
    ) -> None:
        self._router.sent(routed, choice)
        machine = self._machines[self._where[choice.replica]]
        self._replicas[choice.replica].submit(request, machine.clock_s(at_s), at_s)
        self._changed(self._where[choice.replica], at_s)

    def _changed(self, number: int, at_s: float) -> None:
        machine = self._machines[number]
        before_s = machine.end_s
        machine.changed(at_s)
        if machine.end_s not in (before_s, math.inf):
            heapq.heappush(self._ends, (machine.end_s, number))

    def _run_until(self, now_s: float) -> None:
        ends, pages = self._ends, self._pages
        while ends or pages:
            if pages and (not ends or pages[0][0] <= ends[0][0]):
                if pages[0][0] > now_s:
                    return
                self._arrived(*heapq.heappop(pages))
                continue
            if ends[0][0] > now_s:
                return
            end_s, number = heapq.heappop(ends)
            machine = self._machines[number]
            if end_s == machine.end_s:  # else it ended at another time, since a request arrived
                machine.next().end_call(end_s)
                machine.end_s = math.inf
                self._changed(number, end_s)

    # -- prompts that are read apart ------------------------------------------------------------------

    def _reads_apart(self, request: SimulatedRequest, routed: RoutedRequest) -> bool:
        shape = self._shapes[0]
        moves = MoveCosts(shape.move_s, shape.move_token_s)
        decode, prefill = self._readers, self._decoders
        found = plan_prefill(self._router, routed, decode=decode, prefill=prefill, moves=moves)
        if found.is_apart:
            there = replace(found.target, cached_tokens=routed.prompt_tokens - 1)
            self._router.sent(replace(routed, id=~routed.id), there)
            prompt = replace(request.trace, output_tokens=1)
            request.reading = simulated_request(routed.id, prompt, self._page_tokens)
            self._reading[routed.id] = request, found.target, routed
            self._send(request.reading, routed, found.source, prompt.at_s)
        return found.is_apart

    def _read(self, number: int) -> None:
        """A prompt is read, and its last pages are on their way."""
        reading = self._reading[number][0].reading
        assert reading is not None
        shape = self._shapes[0]
        tokens = reading.trace.prompt_tokens - reading.sequence.cached_tokens
        moves = MoveCosts(shape.move_s, shape.move_token_s)
        at_s = reading.end_s + moves.seconds(tokens, shape.max_batch_tokens)
        heapq.heappush(self._pages, (at_s, number))

    def _arrived(self, at_s: float, number: int) -> None:
        """All pages of a prompt are where it is decoded."""
        request, target, routed = self._reading.pop(number)
        self._router.ended(number)
        self._router.ended(~number)
        there = min(self._replicas[target.replica].hold(request), routed.prompt_tokens - 1)
        self._send(request, routed, RoutingChoice(target.replica, there, 0.0), at_s)

    def result(self, policy: Policy, targets: SloTargets) -> SimulationResult:
        """After `finish`."""
        served, shapes = self.served, self._shapes
        ttfts = np.array([one.first_token_s - one.trace.at_s for one in served])
        tpots = np.array([_tpot_s(one) for one in served if one.trace.output_tokens > 1] or [0.0])
        output = sum(one.trace.output_tokens for one in served)
        span_s = max(one.end_s for one in served) - served[0].trace.at_s
        p50, p95, p99 = np.percentile(ttfts, (50, 95, 99)).tolist()
        prompts = sum(one.trace.prompt_tokens for one in served)
        usd = sum(shape.usd_per_hour for shape in shapes) / 3600 * span_s
        return SimulationResult(
            policy=policy,
            replicas=len(shapes),
            requests=len(served),
            refused=self.refused,
            ttft_s=SimulatedTtft(float(ttfts.mean()), p50, p95, p99),
            tpot_s=float(tpots.mean()),
            tpot_p95_s=float(np.percentile(tpots, 95)),
            tpot_p99_s=float(np.percentile(tpots, 99)),
            hit_rate=sum((one.reading or one).sequence.cached_tokens for one in served) / prompts,
            throughput_tok_s=output / span_s,
            utilization=sum(one.busy_s for one in self._replicas) / span_s / len(shapes),
            usd_per_million_tokens=usd / output * 1e6,
            preemptions=sum(one.preemptions for one in self._replicas),
            attained=sum(map(targets.keeps, served)) / (len(served) + self.refused),
            prefill=len(self._readers),
            apart=sum(one.reading is not None for one in served) / len(served),
        )


def _check_pages(shapes: Sequence[ReplicaShape], page_tokens: int) -> None:
    """InvalidRequest where the pages of all caches would not fit into the memory of this machine."""
    tokens = sum(shape.kv_tokens for shape in shapes)
    if tokens // page_tokens > MAX_PAGES:
        raise InvalidRequest(
            f"{len(shapes):,} replicas with {tokens:,} tokens of KV cache in all cannot be simulated (at "
            f"most {MAX_PAGES * page_tokens:,}, with pages of {page_tokens} tokens): give fewer replicas, or "
            "a smaller kv_tokens"
        )


def _ignore(number: int) -> None:
    """The first token of a prompt that is read for another replica is for nobody."""


def _tpot_s(request: SimulatedRequest) -> float:
    """Seconds per token after the first; 0 where there is one."""
    return (request.end_s - request.first_token_s) / max(request.trace.output_tokens - 1, 1)
