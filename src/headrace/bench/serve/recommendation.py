"""The operating point to choose: the load with the highest throughput at which answers are still good."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.bench.serve.arrivals import Point
from headrace.bench.serve.metrics import Distribution, Figures, Goals

GOOD_SHARE = 0.99
"""Of the requests of a load point that must meet every goal."""


class Recommendation(Struct, frozen=True):
    """`point` None: no load point was good enough. `flag` sets a server of this package up for it."""

    text: str
    point: Point | None = None
    flag: str | None = None


def recommend(figures: Sequence[Figures], goals: Goals) -> Recommendation:
    """The load point with the highest throughput of those where GOOD_SHARE of all requests met `goals`."""
    good = [one for one in figures if one.good_share >= GOOD_SHARE]
    if not good:
        return Recommendation(_nothing_good(figures, goals))
    best = max(good, key=lambda one: one.output_tokens_per_s)
    highest = max(figures, key=lambda one: one.point.level)
    found = f"{best.point}: {best.output_tokens_per_s:,.0f} tokens/s with {best.good_share:.0%} good"
    if best is highest and len(figures) > 1:
        found += "; the highest load that was tried, so try a higher one"
    if best.point.form != "concurrency":
        return Recommendation(found, best.point)
    flag = f"--max-num-seqs {best.point.level:g}"
    return Recommendation(f"{found}. Of a headrace server: {flag}", best.point, flag)


def _nothing_good(figures: Sequence[Figures], goals: Goals) -> str:
    least = min(figures, key=lambda one: one.point.level)
    if not least.succeeded:
        return "none: no request succeeded at the lowest load"
    latencies: tuple[tuple[str, Distribution | None, float | None], ...] = (
        ("TTFT", least.ttft_s, goals.ttft_s),
        ("TPOT", least.tpot_s, goals.tpot_s),
        ("E2E", least.e2e_s, goals.e2e_s),
    )
    missed = [
        f"{name} p99 is {1000 * found.p99:,.0f} ms of {1000 * goal:,.0f}"
        for name, found, goal in latencies
        if found is not None and goal is not None and found.p99 > goal
    ]
    cause = f" ({', '.join(missed)})" if missed else ""
    return (
        f"none: already at {least.point} only {least.good_share:.0%} of the requests are good{cause}:"
        " use a smaller model or weights, or other goals"
    )
