"""A chart as inline SVG; its colors follow the reader's light or dark color scheme."""

from __future__ import annotations

from html import escape

from headrace.bench.serve.axis import Axis, label
from headrace.bench.serve.chart_data import Chart, Curve
from headrace.bench.serve.palette import Color, curve_colors

WIDTH, HEIGHT = 380, 260
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 14, 42  # margins around the plot


def svg(chart: Chart) -> str:
    """An <svg> that scales with its container. Points show their values on hover."""
    across, up = chart.axes()
    parts = [_grid(chart, across, up)]
    if chart.goal is not None and chart.goal <= up.high:
        y = _y(up, chart.goal)
        parts.append(f'<line class="goal" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="goal" x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end">goal</text>')
    for curve, color in zip(chart.curves, curve_colors(chart), strict=True):
        parts.append(_curve(chart, curve, color, across, up))
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">'
    return f"{opening}{''.join(parts)}</svg>"


def legend(chart: Chart) -> str:
    """The names of the curves with their colors; empty for a single curve."""
    if len(chart.curves) < 2:
        return ""
    names = (
        f'<span><i style="{_style(color)}"></i>{escape(curve.name)}</span>'
        for curve, color in zip(chart.curves, curve_colors(chart), strict=True)
    )
    return f'<p class="legend">{"".join(names)}</p>'


def _grid(chart: Chart, across: Axis, up: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts: list[str] = []
    for tick in up.ticks():
        y = _y(up, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{label(tick)}</text>')
    for tick in across.ticks():
        x = _x(across, tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{label(tick)}</text>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(chart.x_name)}</text>')
    return "".join(parts)


def _curve(chart: Chart, curve: Curve, color: Color, across: Axis, up: Axis) -> str:
    placed = [(_x(across, x), _y(up, y)) for x, y in curve.points]
    line = " ".join(f"{x},{y}" for x, y in placed)
    parts = [f'<polyline points="{line}"/>']
    if chart.marks:
        for index, ((x, y), (value_x, value_y)) in enumerate(zip(placed, curve.points, strict=True)):
            level = f"{curve.labels[index]}: " if index < len(curve.labels) else ""
            said = f"{curve.name} {level}{value_y:,.1f} at {value_x:,.1f} {chart.x_name}".strip()
            parts.append(f'<circle cx="{x}" cy="{y}" r="4"><title>{escape(said)}</title></circle>')
    for (x, y), text in zip(placed, curve.labels, strict=False):
        parts.append(f'<text x="{x}" y="{y + 17:.1f}" text-anchor="middle">{escape(text)}</text>')
    return f'<g class="curve" style="{_style(color)}">{"".join(parts)}</g>'


def _style(color: Color) -> str:
    return f"--light:{color.light};--dark:{color.dark}"


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM), 1)
