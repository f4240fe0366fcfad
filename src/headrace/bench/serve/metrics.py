"""Metrics from outcomes: latency percentiles, throughput, goodput, errors.

Definitions follow vLLM's and NVIDIA's benchmarks (`vllm bench serve`, genai-perf). Latencies are of
successful requests; goodput (Zhong et al., DistServe, 2024) counts failed requests as misses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from headrace.bench.serve.arrivals import Point
from headrace.bench.serve.result import Outcome

PERCENTILES = (50, 90, 95, 99)


class Distribution(Struct, frozen=True):
    """Statistics over requests (or gaps); percentiles are interpolated linearly, as in NumPy."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    count: int


class Goals(Struct, frozen=True, kw_only=True):
    """Maximum latencies of a good request, in seconds; None means no goal."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met_by(self, outcome: Outcome) -> bool:
        """True if the request succeeded within all goals. One token has no TPOT and meets any TPOT goal."""
        if outcome.fault is not None:
            return False
        found = (outcome.ttft_s, outcome.tpot_s or 0.0, outcome.e2e_s)
        goals = (self.ttft_s, self.tpot_s, self.e2e_s)
        return all(goal is None or value <= goal for value, goal in zip(found, goals, strict=True))


class FaultCount(Struct, frozen=True):
    """Number of requests with one kind of error, and the first message."""

    kind: str
    count: int
    refused: bool
    message: str


class Figures(Struct, frozen=True, kw_only=True):
    """Results of one load point, measured at the clients.

    `duration_s` is from when the first request was due to the end of the last. `output_tokens_per_s` (of
    the system) and `requests_per_s` count successful requests; `tokens_per_s_per_user` is 1 / TPOT of each.
    `goodput_per_s` is requests per second that met every goal, `good_share` their share of all requests
    sent. `send_delay_s` is the client's own delay. If the server did not report the number of output
    tokens, events were counted and `tokens_reported` is false.
    """

    point: Point
    requests: int
    succeeded: int
    refused: int
    failed: int
    faults: tuple[FaultCount, ...]
    duration_s: float
    peak_in_flight: int
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    tokens_reported: bool
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float
    good_share: float
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    tokens_per_s_per_user: Distribution | None
    send_delay_s: Distribution | None


def distribution(values: Sequence[float]) -> Distribution | None:
    """None if there are no values."""
    if not values:
        return None
    array = np.asarray(values)
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, PERCENTILES))
    return Distribution(
        mean=float(array.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        min=float(array.min()),
        max=float(array.max()),
        count=len(values),
    )


def figures(point: Point, outcomes: Sequence[Outcome], goals: Goals) -> Figures:
    """The metrics of one or more outcomes."""
    good = [one for one in outcomes if one.fault is None]
    tpots = [one.tpot_s for one in good if one.tpot_s is not None]
    duration_s = max(one.ended_s for one in outcomes) - min(one.due_s for one in outcomes)
    prompt_tokens = sum(one.prompt_tokens or 0 for one in good)
    output_tokens = sum(one.output_tokens for one in good)
    cached = [one.cached_tokens for one in good if one.cached_tokens is not None]
    met = sum(goals.met_by(one) for one in outcomes)
    faults = _faults(outcomes)
    return Figures(
        point=point,
        requests=len(outcomes),
        succeeded=len(good),
        refused=sum(fault.count for fault in faults if fault.refused),
        failed=sum(fault.count for fault in faults if not fault.refused),
        faults=faults,
        duration_s=duration_s,
        peak_in_flight=_peak_in_flight(outcomes),
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output_tokens,
        tokens_reported=all(one.tokens_reported for one in good),
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=output_tokens / duration_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / duration_s,
        goodput_per_s=met / duration_s,
        good_share=met / len(outcomes),
        ttft_s=distribution([one.ttft_s for one in good]),
        tpot_s=distribution(tpots),
        itl_s=distribution([gap for one in good for gap in one.itl_s]),
        e2e_s=distribution([one.e2e_s for one in good]),
        tokens_per_s_per_user=distribution([1 / tpot for tpot in tpots if tpot > 0]),
        send_delay_s=distribution([one.sent_s - one.due_s for one in outcomes]),
    )


def _faults(outcomes: Sequence[Outcome]) -> tuple[FaultCount, ...]:
    """Most frequent first."""
    faults = [one.fault for one in outcomes if one.fault is not None]
    first = {fault.kind: fault for fault in reversed(faults)}
    counts = Counter(fault.kind for fault in faults)
    return tuple(
        FaultCount(kind, count, first[kind].refused, first[kind].message)
        for kind, count in counts.most_common()
    )


def _peak_in_flight(outcomes: Sequence[Outcome]) -> int:
    """Maximum number of requests in flight; one that ends exactly when another begins does not overlap."""
    changes = sorted([(one.sent_s, 1) for one in outcomes] + [(one.ended_s, -1) for one in outcomes])
    peak = now = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
