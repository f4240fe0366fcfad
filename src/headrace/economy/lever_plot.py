"""Waterfall of a bill: the cost without levers, what each takes off it, and what is left."""

from __future__ import annotations

from pathlib import Path

from headrace.bench.matplotlib_figure import new_figure
from headrace.economy.lever_bill import LeverBill, LeverQuality

_COST, _SAVED, _ADDED, _FAINT = "#475569", "#12805c", "#b91c1c", "#94a3b8"


def plot_bill(bill: LeverBill, path: Path) -> None:
    """Shares of the cost without levers, with 95 % intervals; beside each what it saves alone and what
    it does to answers. Raises UsageError without matplotlib."""
    lines = sorted(bill.lines, key=lambda line: -line.saves_nano)
    names = ["all on the large model", *(line.name for line in lines), "with all levers"]
    canvas = new_figure(8.4, 0.42 * len(names) + 1.3)
    axes = canvas.add_subplot(1, 1, 1)
    base, left = bill.base_nano, 100.0
    axes.barh(0, 100, color=_COST, height=0.62)
    axes.text(101, 0, "100 %", va="center", fontsize=9)
    for row, line in enumerate(lines, 1):
        saved = 100 * line.saves_nano / base
        color = _SAVED if saved >= 0 else _ADDED
        axes.barh(row, -saved, left=left, color=color, height=0.62)
        axes.plot([left, left], [row - 1.31, row + 0.31], color=_FAINT, linewidth=0.8)
        left -= saved
        errors = [[100 * line.high - saved], [saved - 100 * line.low]]
        axes.errorbar(
            left, row, xerr=[[max(0.0, one[0])] for one in errors], color="#0f172a", capsize=2, linewidth=1
        )
        alone = 100 * line.alone_nano / base
        note = f"−{saved:.1f} %" if saved >= 0.05 else f"+{-saved:.1f} %" if saved <= -0.05 else "0.0 %"
        axes.text(101, row, f"{note}   (alone {alone:.1f}{_quality(line.quality)})", va="center", fontsize=9)
    last = len(names) - 1
    axes.barh(last, 100 * bill.total_nano / base, color=_COST, height=0.62)
    text = f"{100 * bill.total_nano / base:.1f} %   saved {100 * bill.saved:.1f} %"
    axes.text(101, last, f"{text} [{100 * bill.low:.1f}, {100 * bill.high:.1f}]", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("cost of the same traffic, % of all on the large model; bars sum exactly", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    canvas.savefig(path, dpi=160, bbox_inches="tight")


def _quality(quality: LeverQuality | None) -> str:
    return "" if quality is None else f"; {quality.rate:.1%} worse, at most {quality.upper:.1%}"
