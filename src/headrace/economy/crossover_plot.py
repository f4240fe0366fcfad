"""Plot of what nodes of one's own, an API and both together cost over the traffic."""

from __future__ import annotations

from pathlib import Path

from headrace.bench.matplotlib_figure import new_figure
from headrace.economy.crossover import Crossover

_COLORS = {"own nodes": "#2563eb", "API": "#ea7317", "both": "#12805c"}


def plot_crossover(found: Crossover, path: Path) -> None:
    """Dollars per million tokens over multiples of the traffic, both logarithmic; the nodes beside the
    points. Raises UsageError without matplotlib."""
    canvas = new_figure(7.2, 4.4)
    axes = canvas.add_subplot(1, 1, 1)
    factors = [point.factor for point in found.points]
    curves = {
        "own nodes": [point.own_usd for point in found.points],
        "API": [point.api_usd for point in found.points],
        "both": [point.hybrid_usd for point in found.points],
    }
    for name, values in curves.items():
        dashed = "--" if name == "both" else "-"
        axes.plot(factors, values, dashed, marker="o", markersize=4, color=_COLORS[name], label=name)
    for point in found.points:
        axes.annotate(
            f"{point.nodes:,}", (point.factor, point.own_usd), xytext=(0, 7), textcoords="offset points",
            ha="center", fontsize=8, color=_COLORS["own nodes"],
        )  # fmt: skip
    if found.break_even_factor is not None:
        axes.axvline(found.break_even_factor, color="#475569", linewidth=1, linestyle=":")
        axes.text(found.break_even_factor, axes.get_ylim()[1], " break-even", va="top", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("multiple of the recorded traffic (numbers: nodes within the objectives)")
    axes.set_ylabel("dollars per million tokens")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    canvas.savefig(path, dpi=160)
