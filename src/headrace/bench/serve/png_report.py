"""The latency-throughput curve as a PNG, drawn with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.bench.matplotlib_figure import new_figure
from headrace.bench.serve.axis import label
from headrace.bench.serve.chart_data import Chart, charts
from headrace.bench.serve.palette import curve_colors
from headrace.bench.serve.runner import Report

COLUMNS = 3
WIDTH_INCHES, HEIGHT_INCHES = 5.2, 3.9
INK, FAINT, GRID = "#1d2430", "#5d6675", "#e3e7ec"
GOAL = "#c2410c"


def write_png(report: Report, path: Path) -> None:
    """Draw the report's charts in one row. Raises UsageError without matplotlib, OSError."""
    shown = [chart for chart in charts(report) if any(curve.points for curve in chart.curves)]
    columns = min(COLUMNS, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = new_figure(WIDTH_INCHES * columns, HEIGHT_INCHES * rows + 0.9)
    figure.suptitle(
        f"{report.model} at {report.order.target.url}",
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
        color=INK,
    )
    for index, chart in enumerate(shown):
        _draw(figure.add_subplot(rows, columns, index + 1), chart)
    figure.text(
        0.01,
        0.005,
        f"headrace bench serve {report.version} · {report.started_at} · {report.machine.cpu}, "
        f"{report.machine.cores} cores",
        fontsize=8,
        color=FAINT,
    )
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97), w_pad=0.12, h_pad=0.12)
    figure.savefig(path, dpi=140, facecolor="white", format="png")


def _draw(axes: Any, chart: Chart) -> None:
    across, up = chart.axes()
    for curve, color in zip(chart.curves, curve_colors(chart), strict=True):
        x, y = zip(*curve.points, strict=True) if curve.points else ((), ())
        style = {"marker": "o", "markersize": 5} if chart.marks else {}
        axes.plot(x, y, color=color.light, linewidth=2, label=curve.name, **style)
        for at, text in zip(curve.points, curve.labels, strict=False):
            axes.annotate(
                text, at, (0, -14), textcoords="offset points", ha="center", fontsize=8, color=FAINT
            )
    if chart.goal is not None and chart.goal <= up.high:
        axes.axhline(chart.goal, color=GOAL, linewidth=1, linestyle=(0, (4, 3)), label="goal")
    for axis, drawn in ((across, axes.xaxis), (up, axes.yaxis)):
        drawn.axes.set(**{f"{drawn.axis_name}scale": "log" if axis.log else "linear"})
        drawn.axes.set(**{f"{drawn.axis_name}lim": (axis.low, axis.high)})
        drawn.set_ticks(axis.ticks(), [label(value) for value in axis.ticks()])
        drawn.set_ticks([], minor=True)
    axes.set_title(chart.title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(chart.x_name, fontsize=9, color=FAINT)
    axes.set_ylabel(chart.y_name, fontsize=9, color=FAINT)
    axes.tick_params(colors=FAINT, labelsize=8, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    if len(chart.curves) > 1:
        axes.legend(frameon=False, fontsize=8, labelcolor=FAINT)
