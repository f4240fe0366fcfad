"""The number of replicas follows the load and the targets, between bounds and without swinging."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.elastic.attainment import MIN_REQUESTS, WINDOW_S, Attainment, LatencyTargets
from headrace.elastic.autoscaler import IDLE_SHARE, Observed, ScalingPolicy, ScalingState, scaled

POLICY = ScalingPolicy(fewest=1, most=8, idle_s=5.0, settle_s=2.0)
BEGIN = ScalingState(1, 0.0)
PLACES = 4


def seen(now_s: float, replicas: int, in_flight: int, attained: float | None = None) -> Observed:
    waiting = 0 if replicas else in_flight
    return Observed(
        now_s=now_s, replicas=replicas, places=PLACES, in_flight=in_flight, waiting=waiting, attained=attained
    )


bounds = st.tuples(st.integers(0, 4), st.integers(1, 12)).map(lambda two: (two[0], max(two)))
loads = st.lists(
    st.tuples(st.floats(0.05, 8.0), st.integers(0, 80), st.none() | st.floats(0.0, 1.0), st.integers(0, 3)),
    max_size=60,
)


@given(bounds, loads)
def test_any_history_stays_between_the_bounds(
    bounds: tuple[int, int], loads: list[tuple[float, int, float | None, int]]
) -> None:
    """And goes down one at a time, never while requests wait, targets are missed, or before `idle_s`."""
    policy = ScalingPolicy(fewest=bounds[0], most=bounds[1], idle_s=5.0, settle_s=2.0)
    state, now_s, lowered_s = ScalingState(max(bounds[0], 1), 0.0), 0.0, -math.inf
    for passed_s, in_flight, attained, missing in loads:
        now_s += passed_s
        now = seen(now_s, max(state.wanted - missing, 0), in_flight, attained)
        after = scaled(state, now, policy)
        assert policy.fewest <= after.wanted <= policy.most
        if after.wanted < state.wanted:
            assert after.wanted == state.wanted - 1
            assert not now.waiting and (attained is None or attained >= policy.met)
            assert now_s - lowered_s > policy.idle_s
            assert in_flight <= after.wanted * PLACES * IDLE_SHARE
            lowered_s = now_s
        elif in_flight > state.wanted * PLACES:
            assert after.wanted == max(state.wanted, min(policy.most, math.ceil(in_flight / PLACES)))
        state = after


@given(st.integers(0, 60), st.integers(1, 8))
def test_a_constant_load_settles(in_flight: int, begin: int) -> None:
    """Within the time that stepping down takes, and then nothing changes any more."""
    state = ScalingState(begin, 0.0)
    history: list[int] = []
    for tick in range(200):
        state = scaled(state, seen(tick / 2, state.wanted, in_flight), POLICY)
        history.append(state.wanted)
    assert len(set(history[100:])) == 1
    turns = sum(
        1 for a, b, c in zip(history, history[1:], history[2:], strict=False) if (b - a) * (c - b) < 0
    )
    assert turns == 0, "up and down again"
    assert in_flight <= history[-1] * PLACES or history[-1] == POLICY.most


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.integers(0, 60), st.integers(0, 20)), max_size=40))
def test_more_load_never_gives_fewer(steps: list[tuple[float, int, int]]) -> None:
    light = heavy = BEGIN
    now_s = 0.0
    for passed_s, in_flight, more in steps:
        now_s += passed_s
        light = scaled(light, seen(now_s, light.wanted, in_flight), POLICY)
        heavy = scaled(heavy, seen(now_s, heavy.wanted, in_flight + more), POLICY)
        assert heavy.wanted >= light.wanted


def test_missed_targets_add_one_replica_after_another() -> None:
    state, wanted = BEGIN, list[int]()
    for tick in range(9):
        state = scaled(state, seen(float(tick), state.wanted, 2, attained=0.5), POLICY)
        wanted.append(state.wanted)
    assert wanted == [1, 1, 2, 2, 2, 3, 3, 3, 4], "each has time to change what is measured"
    waiting = scaled(state, seen(20.0, 2, 2, attained=0.5), POLICY)
    assert waiting.wanted == 4, "not while the last one starts"


def test_zero_and_back() -> None:
    policy = ScalingPolicy(fewest=0, most=3, idle_s=5.0)
    state = scaled(BEGIN, seen(5.5, 1, 0), policy)
    assert state.wanted == 0
    assert scaled(state, seen(100.0, 0, 0), policy).wanted == 0
    assert scaled(state, seen(100.0, 0, 1), policy).wanted == 1
    assert scaled(state, seen(100.0, 0, 9), policy).wanted == 3


def test_attainment_counts_what_is_recent() -> None:
    targets = LatencyTargets(ttft_s=0.5, tpot_s=0.1)
    assert targets.any and not LatencyTargets().any
    assert targets.kept(0.4, 1.3, 10) and not targets.kept(0.6, 0.7, 2) and not targets.kept(0.4, 2.0, 10)
    counted = Attainment(targets)
    for number in range(MIN_REQUESTS):
        assert counted.share(float(number)) is None
        counted.note(float(number), number >= 2)
    assert counted.share(9.0) == 0.8
    assert counted.share(9.0, overdue=6) == 0.5, "requests that have no token yet have missed theirs"
    assert counted.share(1.5 + WINDOW_S) is None, "too few are left"
