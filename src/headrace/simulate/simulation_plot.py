"""Plot of simulated clusters side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.bench.matplotlib_figure import new_figure
from headrace.simulate.simulation import SimulationResult

LEGEND_ROOM = 1.15
"""The axes are so many times as high as the bars, which the legend would hide."""


def plot_simulations(results: Sequence[SimulationResult], path: Path) -> None:
    """Bars by policy: time to the first token, time per token, hit rate and utilization, and cost where
    machines have a price. UsageError without matplotlib."""
    panels: Mapping[str, Sequence[tuple[str, list[float]]]] = {
        "time to first token, s": (
            ("p50", [one.ttft_s.p50 for one in results]),
            ("mean", [one.ttft_s.mean for one in results]),
            ("p95", [one.ttft_s.p95 for one in results]),
        ),
        "time per token, ms": (
            ("mean", [one.tpot_s * 1e3 for one in results]),
            ("p95", [one.tpot_p95_s * 1e3 for one in results]),
            ("p99", [one.tpot_p99_s * 1e3 for one in results]),
        ),
        "share": (
            ("prompt tokens cached", [one.hit_rate for one in results]),
            ("utilization", [one.utilization for one in results]),
        ),
    }
    if any(one.usd_per_million_tokens for one in results):
        costs = [one.usd_per_million_tokens for one in results]
        panels = {**panels, "USD per million tokens": (("cost", costs),)}
    canvas = new_figure(4.2 * len(panels), 3.4)
    for place, (title, series) in enumerate(panels.items()):
        axes = canvas.add_subplot(1, len(panels), place + 1)
        width = 0.8 / len(series)
        for number, (label, values) in enumerate(series):
            at = [row + (number - (len(series) - 1) / 2) * width for row in range(len(results))]
            axes.bar(at, values, width * 0.92, label=label)
        axes.set_xticks(range(len(results)), [one.policy for one in results], fontsize=8)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        low, high = axes.get_ylim()
        axes.set_ylim(low, low + (high - low) * LEGEND_ROOM)
        axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=len(series), columnspacing=1.0)
    canvas.savefig(path, dpi=160, format="png")
