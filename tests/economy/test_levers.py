"""The layer ledger: levers in simulated traffic, their parts, and the bill."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from headrace.economy.lever_bill import LeverQuality, lever_bill
from headrace.economy.levers import (
    LARGE,
    LEVERS,
    LOSSY,
    NOOP,
    PLANTED,
    SMALL,
    LeverCall,
    LeverGame,
    LeverPrices,
    LeverSpeeds,
    SpeedDraws,
    lever_cost,
    plan,
)
from headrace.economy.replay import ReplayJob, StepSpeed, replay
from headrace.errors import InvalidRequest

QUALITY = LeverQuality(measure="answers", count=100, worse=1, upper=0.05, bound=0.05)
QUALITIES = dict.fromkeys(LOSSY, QUALITY)
PRICES = LeverPrices(node_hour=10**9)


def speed(factor: float, pairs: float = 1e-7) -> StepSpeed:
    return StepSpeed(
        base_s=0.02 * factor,
        per_prompt_token_s=1e-3 * factor,
        per_row_s=2e-3 * factor,
        per_pair_s=pairs * factor,
        max_rows=16,
    )


SPEEDS = LeverSpeeds(
    steps={
        (model, quantized, kv): speed(size * (0.5 if quantized else 1), 5e-8 if kv else 1e-7)
        for model, size in ((LARGE, 1.0), (SMALL, 0.1))
        for quantized in (False, True)
        for kv in (False, True)
    },
    paces={(False, False): 0.7, (False, True): 0.9, (True, False): 0.5, (True, True): 0.8},
    student_s=0.002,
    near_s=0.003,
    rows=16,
    page_tokens=16,
)


def traffic(count: int = 60) -> list[LeverCall]:
    random = np.random.default_rng(3)
    shared = tuple(range(64))
    times = np.cumsum(random.exponential(0.2, count)).tolist()
    return [
        LeverCall(
            at_s=at_s,
            kind="chat",
            prompt=shared + tuple(random.integers(0, 1000, int(random.integers(5, 80))).tolist()),
            output=int(random.integers(1, 40)),
            small_prompt=tuple(random.integers(0, 1000, 30).tolist()),
            small_output=20,
            repeats=index % 7 == 6,
            is_near=index % 5 == 4,
            by_small=index % 2 == 0,
            by_student=index % 6 == 1,
        )
        for index, at_s in enumerate(times)
    ]


CALLS = traffic()


def game(planted: float = 0.0) -> LeverGame:
    return LeverGame(lambda levers: lever_cost(CALLS, levers, SPEEDS, PRICES), planted)


def step_by_step(jobs: list[ReplayJob], one: StepSpeed) -> tuple[list[float], list[float]]:
    """The same machine with a loop over every step of one model."""
    waiting: list[list[int]] = []
    rows: dict[int, int] = {}
    first, done = [0.0] * len(jobs), [0.0] * len(jobs)
    now, arrived = 0.0, 0
    while arrived < len(jobs) or waiting or rows:
        if not waiting and not rows:
            now = max(now, jobs[arrived].at_s)
        while arrived < len(jobs) and jobs[arrived].at_s <= now:
            waiting.append([arrived, jobs[arrived].cached])
            arrived += 1
        kv = sum(jobs[job].prompt + made for job, made in rows.items())
        left, complete, tokens, pairs = one.chunk_tokens, [], 0, float(kv)
        while waiting and left and len(rows) + len(complete) < one.max_rows:
            job, position = waiting[0]
            count = min(left, jobs[job].prompt - position)
            left, tokens = left - count, tokens + count
            pairs += sum(position + offset for offset in range(1, count + 1))
            waiting[0][1] += count
            if waiting[0][1] < jobs[job].prompt:
                break
            complete.append(waiting.pop(0)[0])
        now += one.step_s(tokens, len(rows), pairs)
        for job in list(rows):
            rows[job] += 1
        for job in complete:
            first[job], rows[job] = now, 1
        for job in [job for job, made in rows.items() if made >= jobs[job].output]:
            done[job] = now
            del rows[job]
    return first, done


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_the_closed_form_is_the_loop_over_steps(rows: int) -> None:
    random = np.random.default_rng(rows)
    one = StepSpeed(
        base_s=0.01, per_prompt_token_s=2e-4, per_row_s=3e-3, per_pair_s=1e-6, max_rows=rows, chunk_tokens=128
    )
    jobs = [
        ReplayJob(at_s=at_s, model="m", prompt=prompt, output=output, cached=prompt // 3)
        for at_s, prompt, output in zip(
            np.cumsum(random.exponential(0.15, 50)).tolist(),
            random.integers(2, 400, 50).tolist(),
            random.integers(1, 40, 50).tolist(),
            strict=True,
        )
    ]
    found = replay(jobs, {"m": one})
    first, done = step_by_step(jobs, one)
    at_s = np.array([job.at_s for job in jobs])
    assert np.allclose(found.first_s + at_s, first, atol=1e-6)
    assert np.allclose(found.done_s + at_s, done, atol=1e-6)
    assert found.share_s.sum() == pytest.approx(found.busy_s)


def test_nothing_is_replayed_without_jobs() -> None:
    assert replay([], {"m": speed(1)}).busy_s == 0


def test_parts_sum_to_the_nano_dollar_and_a_no_op_is_zero() -> None:
    bill = lever_bill(LEVERS, game(), QUALITIES)
    assert sum(line.saves_nano for line in bill.lines) == bill.base_nano - bill.total_nano
    noop = next(line for line in bill.lines if line.name == NOOP)
    assert (noop.saves_nano, noop.low, noop.high) == (0, 0, 0)
    assert noop.alone_nano == noop.removed_nano == 0
    assert bill.saved > 0.5
    assert bill.low <= bill.saved <= bill.high
    assert bill.lines[-1].stacked_nano == bill.total_nano
    assert sum(line.alone_nano for line in bill.lines) > bill.base_nano - bill.total_nano


def test_a_planted_lever_that_burns_five_percent_shows_it() -> None:
    bill = lever_bill((*LEVERS, PLANTED), game(0.05), QUALITIES)
    planted = next(line for line in bill.lines if line.name == PLANTED)
    assert planted.saves_nano / bill.base_nano == pytest.approx(-0.05, abs=0.001)
    assert planted.low <= -0.0499 <= planted.high + 0.001
    assert sum(line.saves_nano for line in bill.lines) == bill.base_nano - bill.total_nano


def test_the_order_of_the_levers_changes_nothing() -> None:
    given = lever_bill(LEVERS, game(), QUALITIES)
    turned = lever_bill(tuple(reversed(LEVERS)), game(), QUALITIES)
    other = {line.name: line for line in turned.lines}
    for line in given.lines:
        assert abs(line.saves_nano - other[line.name].saves_nano) <= 1  # halves of a nano-dollar
        assert (line.alone_nano, line.removed_nano) == (
            other[line.name].alone_nano,
            other[line.name].removed_nano,
        )


def test_a_lossy_lever_without_quality_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="routing may change answers"):
        lever_bill(("batching", "routing"), game(), {})


def test_a_plan_does_what_its_levers_say() -> None:
    every = plan(CALLS, frozenset(LEVERS), SPEEDS)
    for call, one in zip(CALLS, every, strict=True):
        if call.repeats or call.by_student:
            assert one.model is None
        else:
            assert one.model == (SMALL if call.by_small else LARGE)
            assert one.near == (call.by_small and call.is_near)
    assert [one.cached for one in every if one.model == LARGE][1:] >= [64]
    none = plan(CALLS, frozenset(), SPEEDS)
    assert {(one.model, one.cached, one.drafts, one.other_s) for one in none} == {(LARGE, 0, False, 0.0)}
    assert not any(one.near for one in plan(CALLS, frozenset({"routing", "near drafts"}), SPEEDS))


def test_a_large_model_behind_an_api_costs_its_tokens() -> None:
    prices = LeverPrices(node_hour=10**9, api=(10**6, 10**5, 2 * 10**6))
    run = lever_cost(CALLS, frozenset({"prefix cache"}), SPEEDS, prices)
    tokens = [(len(call.prompt), call.output) for call in CALLS]
    cached = sum(one.cached for one in plan(CALLS, frozenset({"prefix cache"}), SPEEDS))
    prompt, output = sum(one for one, _ in tokens), sum(one for _, one in tokens)
    assert run.nano_usd == pytest.approx(prompt - 0.9 * cached + 2 * output, abs=1)
    assert run.busy_s == 0


def test_hedging_costs_money_and_bounds_the_slowest_first_tokens() -> None:
    plain = lever_cost(CALLS, frozenset(), SPEEDS, PRICES)
    hedged = lever_cost(CALLS, frozenset({"hedging"}), SPEEDS, PRICES)
    assert hedged.nano_usd > plain.nano_usd
    assert hedged.first_s.max() < plain.first_s.max()


def test_other_speeds_with_the_same_work_cost_what_a_simulation_with_them_costs() -> None:
    """Requests one at a time do the same work at any speed, so there the draws are exact."""
    factor = np.array([[1.0], [1.1]])
    draws = SpeedDraws(
        steps={name: factor * np.array(one.coefficients) for name, one in SPEEDS.steps.items()},
        paces={name: np.ones(2) for name in SPEEDS.paces},
    )
    speeds = changed(SPEEDS, draws=draws)
    slower = changed(
        SPEEDS, steps={name: speed_of(1.1 * np.array(one.coefficients)) for name, one in SPEEDS.steps.items()}
    )
    for levers in (frozenset[str](), frozenset({"quantization", "routing"})):
        run = lever_cost(CALLS, levers, speeds, PRICES)
        assert run.draws[0] == pytest.approx(run.nano_usd, rel=1e-6)
        assert run.draws[1] == pytest.approx(lever_cost(CALLS, levers, slower, PRICES).nano_usd, rel=1e-6)


def speed_of(coefficients: NDArray[np.float64]) -> StepSpeed:
    a, b, c, d = coefficients.tolist()
    return StepSpeed(base_s=a, per_prompt_token_s=b, per_row_s=c, per_pair_s=d, max_rows=16)


def test_intervals_contain_the_error_of_the_calibration() -> None:
    """Quantization that some rounds found useless and others twice as good: its interval says so."""
    random = np.random.default_rng(1)
    noise = {False: np.ones((100, 1)), True: random.uniform(0.8, 1.2, (100, 1))}
    draws = SpeedDraws(
        steps={name: noise[name[1]] * np.array(one.coefficients) for name, one in SPEEDS.steps.items()},
        paces={name: np.ones(100) for name in SPEEDS.paces},
    )
    noisy = changed(SPEEDS, draws=draws)
    exact, other = (
        {line.name: line for line in lever_bill(LEVERS, one, QUALITIES).lines}
        for one in (game(), LeverGame(lambda levers: lever_cost(CALLS, levers, noisy, PRICES)))
    )
    widths = {name: other[name].high - other[name].low for name in other}
    assert widths["quantization"] > 1.5 * (exact["quantization"].high - exact["quantization"].low)
    assert (other[NOOP].low, other[NOOP].high) == (0, 0)
    assert other["quantization"].saves_nano == exact["quantization"].saves_nano


def test_the_usual_service_is_a_baseline_of_its_own() -> None:
    usual = frozenset({"batching", "prefix cache"})
    whole = game(0.05)
    rest = [name for name in (*LEVERS, PLANTED) if name not in usual]
    bill = lever_bill(rest, whole.beside(usual), QUALITIES)
    assert bill.base_nano == whole.cost(usual)
    assert sum(line.saves_nano for line in bill.lines) == bill.base_nano - bill.total_nano
    values = {line.name: line.saves_nano / bill.base_nano for line in bill.lines}
    assert values[NOOP] == 0
    assert values[PLANTED] == pytest.approx(-0.05, abs=0.001)
