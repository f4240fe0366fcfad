"""Metrics of known timelines, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.serve.arrivals import Point, poisson_times
from headrace.bench.serve.metrics import Goals, distribution, figures
from headrace.bench.serve.result import Outcome, RequestError

POINT = Point("rate", 1.0)


def outcome(due_s: float, *output_s: float, tokens: int | None = None, **more: object) -> Outcome:
    ended_s = output_s[-1] + 0.25
    tokens = len(output_s) if tokens is None else tokens
    known = {"sent_s": due_s, "tokens_reported": True, "prompt_tokens": 10} | more
    return Outcome(due_s=due_s, ended_s=ended_s, output_s=output_s, output_tokens=tokens, **known)


def failed(due_s: float, ended_s: float, kind: str) -> Outcome:
    return Outcome(due_s=due_s, sent_s=due_s, ended_s=ended_s, fault=RequestError(kind, f"message of {kind}"))


def test_latencies_of_one_timeline() -> None:
    one = outcome(1.0, 1.5, 1.75, 2.5, tokens=5, sent_s=1.25)
    assert one.ttft_s == 0.5  # from when it was due, not from when it was sent
    assert one.e2e_s == 1.5
    assert one.tpot_s == 0.25  # one second for the four tokens after the first
    assert one.itl_s == [0.25, 0.75]
    assert outcome(0.0, 1.0).tpot_s is None


def test_rates_count_from_the_first_due_to_the_last_end() -> None:
    outcomes = [outcome(0.0, 1.0, 2.0), outcome(1.0, 2.0, 2.5, 3.0, 3.75), failed(0.5, 1.0, "http 429")]
    found = figures(POINT, outcomes, Goals())
    assert (found.requests, found.succeeded, found.refused, found.failed) == (3, 2, 1, 0)
    assert found.duration_s == 4.0
    assert found.requests_per_s == 0.5
    assert (found.output_tokens, found.output_tokens_per_s) == (6, 1.5)
    assert found.total_tokens_per_s == (20 + 6) / 4
    assert found.ttft_s is not None
    assert (found.ttft_s.mean, found.ttft_s.count) == (1.0, 2)
    assert found.tokens_per_s_per_user is not None
    assert found.tokens_per_s_per_user.max == 3 / 1.75
    assert found.itl_s is not None
    assert found.itl_s.count == 4


def test_peak_in_flight() -> None:
    first, second, third = (
        outcome(0.0, 1.75),
        outcome(1.0, 2.75),
        outcome(2.0, 3.75),
    )  # each ends 0.25 s later
    assert figures(POINT, [first, second, third], Goals()).peak_in_flight == 2
    assert figures(POINT, [first, third], Goals()).peak_in_flight == 1  # one ends when the other begins


@pytest.mark.parametrize(
    ("goals", "good"),
    [
        (Goals(), 2),
        (Goals(ttft_s=1.0), 2),
        (Goals(ttft_s=0.99), 1),
        (Goals(tpot_s=0.5), 1),
        (Goals(ttft_s=1.0, tpot_s=1.0, e2e_s=2.0), 2),
        (Goals(e2e_s=0.1), 0),
        (Goals(ttft_s=0.6, tpot_s=0.5), 0),  # each meets one of the goals
    ],
)
def test_goodput_counts_requests_that_meet_every_goal(goals: Goals, good: int) -> None:
    outcomes = [
        outcome(0.0, 1.0, 1.5),
        outcome(0.0, 0.5, 1.5),
        failed(0.0, 3.75, "timeout"),
        failed(0, 4, "x"),
    ]
    found = figures(POINT, outcomes, goals)
    assert found.good_share == good / 4
    assert found.goodput_per_s == good / 4.0


def test_one_token_meets_any_tpot_goal() -> None:
    assert Goals(tpot_s=0.001).met_by(outcome(0.0, 1.0))


def test_faults_are_counted_by_kind_with_the_first_message() -> None:
    outcomes = [failed(0, 1, "http 500"), failed(0, 1, "http 503"), failed(0, 1, "http 500")]
    found = figures(POINT, outcomes, Goals())
    assert [(one.kind, one.count, one.refused) for one in found.faults] == [
        ("http 500", 2, False),
        ("http 503", 1, True),
    ]
    assert found.faults[0].message == "message of http 500"
    assert (found.ttft_s, found.tokens_per_s_per_user, found.output_tokens_per_s) == (None, None, 0)


def test_percentiles_are_numpys() -> None:
    values = np.random.default_rng(5).exponential(1.0, 137).tolist()
    found = distribution(values)
    assert found is not None
    assert [found.p50, found.p90, found.p95, found.p99] == np.percentile(values, [50, 90, 95, 99]).tolist()
    assert (found.min, found.max, found.count) == (min(values), max(values), 137)
    assert distribution([]) is None


def test_poisson_times_depend_on_seed_and_rate() -> None:
    times = poisson_times(5.0, 10_000, seed=3)
    assert times == poisson_times(5.0, 10_000, seed=3)
    assert times != poisson_times(5.0, 10_000, seed=4)
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.min() > 0
    # Mean and standard deviation of exponential gaps are both 1 / rate; 3 % is three standard errors.
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.05)
    # The same seed at twice the rate is the same process in half the time.
    assert poisson_times(10.0, 100, seed=3) == pytest.approx([time / 2 for time in times[:100]])
