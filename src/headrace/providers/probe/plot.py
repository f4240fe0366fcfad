"""Plot of probes over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.bench.matplotlib_figure import new_figure
from headrace.providers.probe.sample import SpeedSample
from headrace.providers.probe.summary import speed_rows
from headrace.storage.probes import ProbeRow

_COLORS = ("#2563eb", "#ea7317", "#12805c", "#9333ea", "#dc2626", "#475569", "#0891b2", "#a16207")
_CURVES: tuple[tuple[str, Callable[[SpeedSample], float | None]], ...] = (
    ("first answer token, s", lambda one: one.first_answer_s),
    ("output, tokens/s", lambda one: one.tokens_per_s),
)


def plot_probes(rows: Sequence[ProbeRow], path: Path) -> None:
    """Time to the first answer token and output speed, over time, of single requests of the shortest length
    that each endpoint was probed with; a point is one request. Raises UsageError without matplotlib."""
    by_name: dict[str, list[tuple[float, SpeedSample]]] = defaultdict(list)
    for row in rows:
        by_name[row.endpoint] += speed_rows([row])
    figure = new_figure(8.0, 5.6)
    for number, (label, value) in enumerate(_CURVES):
        axes = figure.add_subplot(len(_CURVES), 1, number + 1)
        for place, (name, samples) in enumerate(sorted(by_name.items())):
            _curve(axes, name, _COLORS[place % len(_COLORS)], samples, value)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8)
        if number == 0:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=160)


def _curve(
    axes: Any,
    name: str,
    color: str,
    samples: Sequence[tuple[float, SpeedSample]],
    value: Callable[[SpeedSample], float | None],
) -> None:
    single = min((one.parallel for _, one in samples), default=1)
    shortest = min((one.prompt_tokens for _, one in samples), default=0)
    points = [
        (datetime.fromtimestamp(at_s, UTC), found)
        for at_s, one in samples
        if one.parallel == single and one.prompt_tokens == shortest and (found := value(one)) is not None
    ]
    if points:
        label = f"{name} ({shortest:,} tokens)"
        axes.plot(*zip(*points, strict=True), "o-", markersize=3, linewidth=1, color=color, label=label)
