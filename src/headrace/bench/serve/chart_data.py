"""Chart data of a report, for both PNG and HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from headrace.bench.serve.axis import Axis, axis_of
from headrace.bench.serve.metrics import Distribution, Figures
from headrace.bench.serve.result import Outcome
from headrace.bench.serve.runner import Report

GOAL_ROOM = 2.0  # times the highest point; a goal above this is not drawn


class Curve(Struct, frozen=True):
    """A line through (x, y); `labels` are shown at its points if not empty."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()


class Chart(Struct, frozen=True):
    """Curves over the same axes. `goal` is a maximum for y; `marks`: each point is one load level."""

    title: str
    x_name: str
    y_name: str
    curves: tuple[Curve, ...]
    goal: float | None = None
    marks: bool = True

    def axes(self) -> tuple[Axis, Axis]:
        """The x and y axes; the range includes the goal unless it is far above all curves."""
        points = [point for curve in self.curves for point in curve.points]
        heights = [y for _, y in points]
        if self.goal is not None and self.goal <= GOAL_ROOM * max(heights, default=0.0):
            heights.append(self.goal)
        return axis_of([x for x, _ in points]), axis_of(heights, whole=not self.marks)


def charts(report: Report) -> list[Chart]:
    """Latency over throughput if there are several load points, and the latency distribution at each."""
    goals = report.order.goals
    several = len(report.figures) > 1
    found = [
        _over_throughput("Time to first token (TTFT)", report, lambda one: one.ttft_s, goals.ttft_s),
        _over_throughput("Time per output token (TPOT)", report, lambda one: one.tpot_s, goals.tpot_s),
        _per_user(report),
    ]
    spreads = [
        _spread("Time to first token (TTFT), cumulative", report, lambda one: [one.ttft_s]),
        _spread("Inter-token latency (ITL), cumulative", report, lambda one: one.itl_s, "gaps"),
        _spread("End-to-end latency (E2E), cumulative", report, lambda one: [one.e2e_s]),
    ]
    return found + spreads if several else spreads


def _over_throughput(
    title: str, report: Report, of: Callable[[Figures], Distribution | None], goal_s: float | None
) -> Chart:
    shown = [(one, found) for one in report.figures if (found := of(one)) is not None]
    curves = tuple(
        Curve(
            name,
            tuple((one.output_tokens_per_s, 1000 * getattr(found, name)) for one, found in shown),
            tuple(f"{one.point.level:g}" for one, _ in shown) if name == "p50" else (),
        )
        for name in ("p50", "p90", "p99")
    )
    goal = None if goal_s is None else 1000 * goal_s
    return Chart(title, "throughput, output tokens/s", "ms", curves, goal)


def _per_user(report: Report) -> Chart:
    shown = [(one, found) for one in report.figures if (found := one.tokens_per_s_per_user) is not None]
    points = tuple((found.p50, one.output_tokens_per_s) for one, found in shown)
    labels = tuple(f"{one.point.level:g}" for one, _ in shown)
    return Chart(
        "Throughput over speed per user",
        "output tokens/s per user, median",
        "throughput, output tokens/s",
        (Curve("", points, labels),),
    )


def _spread(
    title: str, report: Report, of: Callable[[Outcome], Sequence[float]], counted: str = "requests"
) -> Chart:
    curves: list[Curve] = []
    for one, outcomes in zip(report.figures, report.outcomes, strict=True):
        good = [outcome for outcome in outcomes if outcome.fault is None]
        values = [1000 * value for outcome in good for value in of(outcome)]
        if values:
            curves.append(Curve(str(one.point), _cumulative(values)))
    return Chart(title, "ms", f"% of {counted}", tuple(curves), marks=False)


def _cumulative(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    shares = np.linspace(0, 100, 101)
    return tuple(zip(np.percentile(values, shares).tolist(), shares.tolist(), strict=True))
