"""Plot of the speed-ups measured by `headrace bench speculative`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.bench.matplotlib_figure import new_figure
from headrace.bench.speculative import SpeculativeBenchResult

_COLORS = ("#2563eb", "#ea7317", "#12805c")


def plot_speed_ups(figures: Sequence[SpeculativeBenchResult], path: Path) -> None:
    """Bars by task and batch size, with the minimum and maximum of single runs; one subplot per
    temperature. Raises UsageError without matplotlib.
    """
    temperatures = sorted({figure.temperature for figure in figures})
    drafters = list(dict.fromkeys(figure.drafter for figure in figures))
    groups = list(dict.fromkeys((figure.job, figure.batch) for figure in figures))
    canvas = new_figure(1.6 + 0.9 * len(groups), 3.4 * len(temperatures))
    for row, temperature in enumerate(temperatures):
        axes = canvas.add_subplot(len(temperatures), 1, row + 1)
        width = 0.8 / len(drafters)
        for place, drafter in enumerate(drafters):
            cells = {
                (f.job, f.batch): f for f in figures if f.temperature == temperature and f.drafter == drafter
            }
            at = [groups.index(group) + (place - (len(drafters) - 1) / 2) * width for group in cells]
            tall = [cell.job_speed_up for cell in cells.values()]
            low = [max(cell.job_speed_up - cell.speed_up.min, 0.0) for cell in cells.values()]
            high = [max(cell.speed_up.max - cell.job_speed_up, 0.0) for cell in cells.values()]
            color = _COLORS[place % len(_COLORS)]
            bars = axes.bar(at, tall, width * 0.92, yerr=(low, high), color=color, label=drafter, capsize=2)
            axes.bar_label(bars, [f"{value:.2f}" for value in tall], padding=2, fontsize=8)
        axes.axhline(1.0, color="#475569", linewidth=1, linestyle="--")
        axes.set_xticks(
            range(len(groups)), [f"{job}\nbatch size {batch}" for job, batch in groups], fontsize=8
        )
        axes.set_ylabel("speed-up over plain decoding")
        axes.set_title(f"temperature {temperature:g}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.15)
        axes.legend(frameon=False, fontsize=8, title="draft method", title_fontsize=8)
    canvas.savefig(path, dpi=160)
