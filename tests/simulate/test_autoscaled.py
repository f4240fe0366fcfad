"""Simulated clusters follow the load as servers do: the function is the same."""

from __future__ import annotations

import pytest

from headrace.bench.serve.trace import TraceRequest
from headrace.elastic.autoscaler import ScalingPolicy
from headrace.errors import InvalidRequest
from headrace.simulate.autoscaled import simulate_autoscaled
from headrace.simulate.simulation import ReplicaShape, SloTargets, simulate

SHAPE = ReplicaShape(step_s=0.01, prefill_s=1e-4, row_s=1e-3, max_num_seqs=8, usd_per_hour=2.0)


def waves(count: int, gap_s: float, busy_s: float, idle_s: float) -> list[TraceRequest]:
    """Requests every `gap_s` for `busy_s`, then none for `idle_s`, again and again."""
    made: list[TraceRequest] = []
    at_s = 0.0
    while len(made) < count:
        if at_s % (busy_s + idle_s) < busy_s:
            made.append(TraceRequest(at_s=at_s, prompt_tokens=100, output_tokens=50, blocks=()))
        at_s += gap_s
    return made


def test_replicas_follow_waves_of_load() -> None:
    trace = waves(600, 0.05, 10.0, 90.0)
    policy = ScalingPolicy(fewest=0, most=6, idle_s=5.0)
    found = simulate_autoscaled(trace, SHAPE, "least-load", policy, cold_start_s=1.0)
    fixed = simulate(trace, SHAPE, 6, "least-load")
    assert found.served.requests == fixed.requests == 600
    assert 2 <= found.served.replicas <= 6 and found.mean_replicas < found.served.replicas / 2
    assert found.usd < 0.5 * 6 * SHAPE.usd_per_hour * trace[-1].at_s / 3600, "the waves leave time for less"
    assert found.served.ttft_s.p99 < 5.0 and found.served.ttft_s.p50 < 2 * fixed.ttft_s.p50 + 0.5


def test_nothing_is_lost_at_zero() -> None:
    one = TraceRequest(at_s=100.0, prompt_tokens=10, output_tokens=5, blocks=())
    policy = ScalingPolicy(fewest=0, most=2)
    found = simulate_autoscaled([one], SHAPE, "kv", policy, cold_start_s=3.0)
    assert found.starts == 1 and 3.0 <= found.served.ttft_s.mean < 5.0


def test_years_without_a_request_are_refused() -> None:
    """Two lines of a trace that are ten years apart would take hours."""
    trace = [TraceRequest(at_s=at_s, prompt_tokens=10, output_tokens=5) for at_s in (0.0, 3e8)]
    with pytest.raises(InvalidRequest, match="3,472 days"):
        simulate_autoscaled(trace, SHAPE, "kv", ScalingPolicy(fewest=0, most=1), cold_start_s=1.0)


def test_targets_cost_replicas() -> None:
    trace = waves(600, 0.05, 60.0, 0.0)
    policy = ScalingPolicy(fewest=1, most=6, idle_s=1000.0, met=0.95)
    cheap = simulate_autoscaled(trace, SHAPE, "least-load", policy, cold_start_s=1.0)
    quick = simulate_autoscaled(
        trace, SHAPE, "least-load", policy, cold_start_s=1.0, targets=SloTargets(tpot_s=0.014)
    )
    assert quick.mean_replicas > cheap.mean_replicas and quick.served.tpot_s < cheap.served.tpot_s
