"""Curve colors for light and dark backgrounds: distinct colors for percentiles, one ramp for load levels."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.bench.serve.chart_data import Chart


class Color(Struct, frozen=True):
    """One color on a light and on a dark background."""

    light: str
    dark: str


_APART = (Color("#1d6fb8", "#6cb6ff"), Color("#b7791f", "#f0b64a"), Color("#b3306f", "#ff7ab8"))
_RAMP = (
    Color("#86b6d8", "#d3ecff"),
    Color("#4f9cc9", "#a5d6ff"),
    Color("#1d7fb8", "#79c0ff"),
    Color("#2560b0", "#7ea6ff"),
    Color("#3f45a5", "#9a8cff"),
    Color("#5b2f96", "#b982f5"),
    Color("#7d2483", "#d97be0"),
    Color("#9b1d5f", "#ff7ab8"),
)


def curve_colors(chart: Chart) -> Sequence[Color]:
    """One color per curve of a chart; if there are more levels than colors, neighboring levels share one."""
    count = len(chart.curves)
    if chart.marks:
        return _APART[:count]
    if count == 1:
        return _APART[:1]
    return [_RAMP[round(index * (len(_RAMP) - 1) / (count - 1))] for index in range(count)]
