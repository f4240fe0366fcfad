"""Plot of the divergence, with matplotlib."""

from __future__ import annotations

from pathlib import Path

from headrace.bench.matplotlib_figure import new_figure
from headrace.bench.quality.report import QualityReport


def plot(report: QualityReport, file: Path) -> None:
    """The share of positions over their divergence, on a logarithmic scale. UsageError without matplotlib."""
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    values, shares = zip(*report.distribution, strict=True)
    axes.plot(values, shares, color="#2a6f97", linewidth=2)
    axes.axvline(report.kl.mean, color="#c1121f", linewidth=1, linestyle="--")
    axes.annotate(f"mean {report.kl.mean:.4g}", (report.kl.mean, 0.05), color="#c1121f")
    axes.set_xscale("log")
    axes.set_xlabel("KL divergence from the reference, nats")
    axes.set_ylabel("share of positions with at most this")
    axes.set_title(
        f"{report.model} against {report.reference}: top-1 agrees in {report.top1:.1%}", fontsize=10
    )
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)
