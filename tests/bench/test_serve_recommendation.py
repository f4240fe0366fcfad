"""The load point that is recommended, from figures of known timelines."""

from __future__ import annotations

from headrace.bench.serve.arrivals import Form, Point
from headrace.bench.serve.metrics import Figures, Goals, figures
from headrace.bench.serve.recommendation import recommend
from headrace.bench.serve.result import Outcome

GOALS = Goals(tpot_s=0.1)


def point(level: float, tpot_s: float, *, form: Form = "concurrency", slow: int = 0) -> Figures:
    """100 requests of two tokens; `slow` of them take a second a token."""
    outcomes = [
        Outcome(
            due_s=0.0,
            sent_s=0.0,
            ended_s=1 / level,
            output_s=(0.0, 1.0 if at < slow else tpot_s),
            output_tokens=2,
            tokens_reported=True,
            prompt_tokens=1,
        )
        for at in range(100)
    ]
    return figures(Point(form, level), outcomes, GOALS)


def test_the_highest_throughput_within_the_goals() -> None:
    found = recommend([point(1, 0.01), point(4, 0.05), point(16, 0.05, slow=2)], GOALS)
    assert found.point == Point("concurrency", 4)
    assert found.flag == "--max-num-seqs 4"
    assert "concurrency 4: 800" in found.text
    assert "higher" not in found.text


def test_one_in_a_hundred_may_miss() -> None:
    found = recommend([point(1, 0.01), point(4, 0.05, slow=1)], GOALS)
    assert found.point == Point("concurrency", 4)
    assert "try a higher one" in found.text  # nothing above it was measured


def test_rates_recommend_no_setting() -> None:
    found = recommend([point(2, 0.05, form="rate"), point(8, 0.5, form="rate")], GOALS)
    assert found.point == Point("rate", 2)
    assert found.flag is None


def test_nothing_is_good_enough() -> None:
    found = recommend([point(4, 0.9), point(1, 0.25)], GOALS)
    assert found.point is None
    assert "TPOT p99 is 250 ms of 100" in found.text
