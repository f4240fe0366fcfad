"""Machines of one's own or an API: what each costs for recorded traffic, at any multiple of it.

Nodes get requests at random, so N nodes under f times the traffic are N nodes that each serve a share f / N
of the trace: one search finds the largest share at which a node keeps its objectives, and with that the
fewest nodes for every f. A balancer that knows the nodes does better: the number is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.bench.serve.trace import TraceRequest
from headrace.economy.node import NodeSpeed, serve
from headrace.errors import UsageError

FACTORS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WINDOW_S = 10.0
"""Peaks shorter than this are not seen where they would go to the API."""
ENOUGH_REQUESTS = 4_000
"""Requests of a share that are simulated at least, with draws of it until there are as many."""
MAX_COPIES = 1_000_000
"""Of a trace that one node may serve: more are not drawn."""
_MAX_DRAWS, _MAX_DRAWN = 40, 30_000
_HALVINGS = 12


class Objectives(Struct, frozen=True):
    """The share of requests that must have their first token and each further one in time."""

    ttft_s: float
    tpot_s: float
    share: float


class Traffic(Struct, frozen=True):
    """A trace as columns, and how long it lasts, at least a minute."""

    at_s: NDArray[np.float64]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    duration_s: float

    @property
    def tokens_per_hour(self) -> float:
        """Of prompts and answers together."""
        return float(self.prompts.sum() + self.outputs.sum()) / self.duration_s * 3600


class CrossoverPoint(Struct, frozen=True, kw_only=True):
    """One multiple of the traffic: what it costs in dollars per million tokens, and the share of the nodes'
    time that is used. `hybrid_nodes` and the API together are the cheapest mix; `hybrid_api_share` goes to
    the API."""

    factor: float
    nodes: int
    utilization: float
    own_usd: float
    api_usd: float
    hybrid_usd: float
    hybrid_nodes: int
    hybrid_api_share: float


class Crossover(Struct, frozen=True, kw_only=True):
    """All points, and where nodes of one's own begin to be cheaper: a multiple of the traffic and its
    utilization, None where they never are. `node_share` is what one node serves of the trace within the
    objectives."""

    points: tuple[CrossoverPoint, ...]
    node_share: float
    saturated_share: float
    break_even_factor: float | None
    break_even_utilization: float | None


class Shares(Struct, frozen=True):
    """What a node serves of a trace: the whole of it within the objectives, one without peaks, and as much
    as it can without objectives."""

    whole: float
    even: float
    saturated: float


def _without_peaks(traffic: Traffic) -> Traffic:
    """The same requests at random times."""
    at_s = np.random.default_rng(20231116).uniform(0, traffic.duration_s, len(traffic.at_s))
    return replace(traffic, at_s=np.sort(at_s))


def traffic_of(requests: Sequence[TraceRequest]) -> Traffic:
    """The columns of a trace."""
    at_s = np.array([one.at_s for one in requests])
    return Traffic(
        at_s,
        np.array([one.prompt_tokens for one in requests]),
        np.array([one.output_tokens for one in requests]),
        max(60.0, float(at_s[-1])),
    )


def api_usd_per_hour(traffic: Traffic, input_usd: float, output_usd: float) -> float:
    """What an API with these prices per million tokens costs for the trace."""
    spent = float(traffic.prompts.sum()) * input_usd + float(traffic.outputs.sum()) * output_usd
    return spent / 1e6 / traffic.duration_s * 3600


def crossover(
    traffic: Traffic,
    speed: NodeSpeed,
    objectives: Objectives,
    *,
    node_usd: float,
    api_usd: float,
    factors: Sequence[float] = FACTORS,
) -> Crossover:
    """Costs at multiples of the traffic. `node_usd` per node and hour, `api_usd` per hour of the trace.

    Raises UsageError where not even a node without load keeps the objectives.
    """
    share = largest_share(traffic, speed, objectives)
    even_share = max(share, largest_share(_without_peaks(traffic), speed, objectives))
    saturated = traffic.duration_s / float(_seconds(traffic, speed).sum())
    shares = Shares(share, even_share, saturated)
    points = [
        _point(traffic, speed, factor, shares, node_usd=node_usd, api_usd=api_usd) for factor in factors
    ]
    even = _break_even(share, node_usd, api_usd)
    return Crossover(
        points=tuple(points),
        node_share=share,
        saturated_share=saturated,
        break_even_factor=even,
        break_even_utilization=None if even is None else even / saturated,
    )


def _break_even(share: float, node_usd: float, api_usd: float) -> float | None:
    """The least multiple at which nodes are not dearer: with one node, else with the least number that is
    full enough, else never."""
    if api_usd <= 0 or node_usd / api_usd > share:
        return None
    return node_usd / api_usd


def largest_share(traffic: Traffic, speed: NodeSpeed, objectives: Objectives) -> float:
    """The largest part of the trace (above 1: multiple) that one node serves within the objectives."""
    high = 2 * traffic.duration_s / float(_seconds(traffic, speed).sum())
    if high > MAX_COPIES:
        raise UsageError(
            f"the trace has {len(traffic.at_s):,} requests in {traffic.duration_s / 3600:,.0f} hours, a node "
            f"might serve more than {MAX_COPIES:,} times as many: take a part with more traffic"
        )
    low = high / 2**_HALVINGS
    if not _keeps(traffic, speed, objectives, low):
        met = _met(traffic, speed, objectives, low)
        raise UsageError(
            f"a node with hardly any load keeps the objectives for {met:.1%} of the requests, "
            f"{objectives.share:.1%} are wanted: allow more time, or name a faster node"
        )
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _keeps(traffic, speed, objectives, middle) else (low, middle)
    return low


def _keeps(traffic: Traffic, speed: NodeSpeed, objectives: Objectives, share: float) -> bool:
    return _met(traffic, speed, objectives, share) >= objectives.share


def _met(traffic: Traffic, speed: NodeSpeed, objectives: Objectives, share: float) -> float:
    """The part of the requests in time where a node serves a share of the trace."""
    generator = np.random.default_rng(20231116)
    good = seen = 0
    for _ in range(_MAX_DRAWS):
        at_s, which = _drawn(traffic, share, generator)
        if len(which):
            served = serve(speed, at_s, traffic.prompts[which], traffic.outputs[which])
            good += int(np.sum((served.ttft_s <= objectives.ttft_s) & (served.tpot_s <= objectives.tpot_s)))
            seen += len(which)
        if seen >= ENOUGH_REQUESTS:
            break
    return good / seen if seen else 1.0


def _drawn(
    traffic: Traffic, share: float, generator: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Each request as often as the share says on average. Copies of a trace begin at other times of it, so
    that several are more of the same traffic and not the same peaks on top of each other."""
    times: list[NDArray[np.float64]] = []
    rows: list[NDArray[np.intp]] = []
    for part in [1.0] * int(share) + [share % 1]:
        which = np.flatnonzero(generator.random(len(traffic.at_s)) < part)
        shift = generator.uniform(0, traffic.duration_s) if share > 1 else 0.0
        times.append((traffic.at_s[which] + shift) % traffic.duration_s)
        rows.append(which)
    at_s, drawn = np.concatenate(times), np.concatenate(rows)
    order = np.argsort(at_s, kind="stable")[
        :_MAX_DRAWN
    ]  # the first ones are enough to see whether it is full
    return at_s[order], drawn[order]


def _seconds(traffic: Traffic, speed: NodeSpeed) -> NDArray[np.float64]:
    """Seconds of a full node that each request takes: its prompt in full chunks, its answer in full steps."""
    prompt_s = speed.per_prompt_token_s
    row_s = speed.step_s(speed.max_rows, 0) / speed.max_rows
    return traffic.prompts * prompt_s + traffic.outputs * row_s


def _point(
    traffic: Traffic,
    speed: NodeSpeed,
    factor: float,
    shares: Shares,
    *,
    node_usd: float,
    api_usd: float,
) -> CrossoverPoint:
    nodes = max(1, math.ceil(factor / shares.whole - 1e-9))
    millions = factor * traffic.tokens_per_hour / 1e6
    mixes = [
        (count * node_usd + over * factor * api_usd, count, over)
        for count in _counts(nodes)
        for over in [_overflow(traffic, speed, factor, shares.even, count) if count < nodes else 0.0]
    ]
    cost, count, over = min(mixes)
    return CrossoverPoint(
        factor=factor,
        nodes=nodes,
        utilization=factor / (nodes * shares.saturated),
        own_usd=nodes * node_usd / millions,
        api_usd=factor * api_usd / millions,
        hybrid_usd=cost / millions,
        hybrid_nodes=count,
        hybrid_api_share=over,
    )


def _counts(nodes: int) -> list[int]:
    """Numbers of nodes to try in a mix: all up to 200, else 200 of them."""
    return sorted({round(count) for count in np.linspace(0, nodes, min(nodes, 200) + 1)})


def _overflow(traffic: Traffic, speed: NodeSpeed, factor: float, share: float, nodes: int) -> float:
    """The part of the work beyond what nodes take in each window. Where the API takes peaks, a node takes in
    every window as much as it can of even traffic: its `share`."""
    work = _seconds(traffic, speed)
    windows = np.bincount((traffic.at_s // WINDOW_S).astype(np.int64), weights=work)
    total = float(windows.sum())
    capacity = nodes * share * total / (traffic.duration_s / WINDOW_S)
    return min(1.0, float(np.maximum(0.0, factor * windows - capacity).sum()) / (factor * total))
