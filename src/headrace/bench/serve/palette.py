"""Colours of curves on light and on dark ground: percentiles apart, levels of load in one ramp."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.bench.serve.chart_data import Chart


class Colour(Struct, frozen=True):
    """The same curve on a light and on a dark ground."""

    light: str
    dark: str


_APART = (Colour("#1d6fb8", "#6cb6ff"), Colour("#b7791f", "#f0b64a"), Colour("#b3306f", "#ff7ab8"))
_RAMP = (
    Colour("#86b6d8", "#d3ecff"),
    Colour("#4f9cc9", "#a5d6ff"),
    Colour("#1d7fb8", "#79c0ff"),
    Colour("#2560b0", "#7ea6ff"),
    Colour("#3f45a5", "#9a8cff"),
    Colour("#5b2f96", "#b982f5"),
    Colour("#7d2483", "#d97be0"),
    Colour("#9b1d5f", "#ff7ab8"),
)


def curve_colours(chart: Chart) -> Sequence[Colour]:
    """One colour for each curve of a chart; more levels than there are colours share neighbouring ones."""
    count = len(chart.curves)
    if chart.marks:
        return _APART[:count]
    if count == 1:
        return _APART[:1]
    return [_RAMP[round(index * (len(_RAMP) - 1) / (count - 1))] for index in range(count)]
