"""A report as one self-contained HTML page: results, charts, tables, settings, definitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from headrace.bench.serve.chart_data import Chart, charts
from headrace.bench.serve.formatting import (
    DEFINITIONS,
    SPREAD,
    cached_share,
    goals_text,
    latency_rows,
    milliseconds,
    number,
    of_user,
)
from headrace.bench.serve.json_report import settings
from headrace.bench.serve.metrics import Figures
from headrace.bench.serve.recommendation import recommend
from headrace.bench.serve.runner import Report
from headrace.bench.serve.svg import legend, svg

_STYLE = Path(__file__).with_name("html_report.css")


def html(report: Report) -> str:
    """The whole page. All text from the server is escaped."""
    title = escape(report.model)
    target, goals = report.order.target, goals_text(report.order.goals)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: headrace bench serve</title>
<style>{_STYLE.read_text(encoding="utf-8")}</style></head><body><main>
<h1>{title}</h1>
<p class="under">{escape(target.url)} · {target.endpoint} · {escape(report.started_at)} · goals: {goals}</p>
<div class="tiles">{"".join(_tiles(report))}</div>
<p class="under"><b>Recommended:</b> {escape(recommend(report.figures, report.order.goals).text)}</p>
{_notes(report.notes)}
<h2>Curves</h2><div class="charts">{"".join(map(_chart, charts(report)))}</div>
<h2>Load points</h2><div class="card wide">{_points(report.figures)}</div>
<h2>Latencies in ms</h2><div class="card wide">{_latencies(report.figures)}</div>
{_faults(report.figures)}
<div class="pair"><div><h2>Settings</h2><div class="card">{_list(_settings(report))}</div></div>
<div><h2>Client machine</h2><div class="card">{_list(_machine(report))}</div></div></div>
<h2>Definitions</h2><div class="card">{_list(DEFINITIONS)}</div>
</main></body></html>
"""


def _tiles(report: Report) -> Iterable[str]:
    served = [one for one in report.figures if one.succeeded]
    if served:
        fastest = max(served, key=lambda one: one.output_tokens_per_s)
        yield _tile("highest throughput", number(fastest.output_tokens_per_s), "tok/s", fastest)
        users = [(one.tokens_per_s_per_user.p50, one) for one in served if one.tokens_per_s_per_user]
        if users:
            speed, at = max(users, key=lambda pair: pair[0])
            yield _tile("highest speed per user, median", number(speed), "tok/s", at)
        first, at = min(((one.ttft_s.p50, one) for one in served if one.ttft_s), key=lambda pair: pair[0])
        yield _tile("lowest TTFT, median", milliseconds(first), "ms", at)
        best = max(served, key=lambda one: one.goodput_per_s)
        yield _tile(
            f"best goodput ({best.good_share:.0%} good)", number(best.goodput_per_s), "requests/s", best
        )
    lost = sum(one.refused + one.failed for one in report.figures)
    asked = sum(one.requests for one in report.figures)
    alarm = ' class="alarm"' if lost else ""
    yield (
        f'<div class="card"><span>refused or failed</span><b{alarm}>{lost:,} <small>of {asked:,}</small></b>'
        f"<span>requests</span></div>"
    )


def _tile(name: str, value: str, unit: str, at: Figures) -> str:
    return (
        f'<div class="card"><span>{escape(name)}</span><b>{value} <small>{unit}</small></b>'
        f"<span>at {escape(str(at.point))}</span></div>"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<div class="card notes">{"".join(f"<p>{escape(note)}</p>" for note in notes)}</div>'


def _chart(chart: Chart) -> str:
    return (
        f'<div class="card"><h3>{escape(chart.title)}</h3><p class="unit">{escape(chart.y_name)}</p>'
        f"{svg(chart)}{legend(chart)}</div>"
    )


def _points(figures: Sequence[Figures]) -> str:
    header = (
        *(
            figures[0].point.form,
            "sent",
            "refused",
            "failed",
            "seconds",
            "max in flight",
            "prompt tokens",
        ),
        *("requests/s", "tokens/s", "tokens/s per user", "goodput/s", "good"),
    )
    rows = [
        (
            f"{one.point.level:g}",
            *(f"{one.requests:,}", _alarming(one.refused), _alarming(one.failed), number(one.duration_s)),
            *(f"{one.peak_in_flight:,}", _prompt_tokens(one), number(one.requests_per_s)),
            *(
                number(one.output_tokens_per_s),
                of_user(one),
                number(one.goodput_per_s),
                f"{one.good_share:.0%}",
            ),
        )
        for one in figures
    ]
    return _table(header, [_row(row) for row in rows])


def _prompt_tokens(one: Figures) -> str:
    share = cached_share(one)
    return f"{one.prompt_tokens:,}" + ("" if share is None else f" ({share} cached)")


def _latencies(figures: Sequence[Figures]) -> str:
    rows: list[str] = []
    for one in figures:
        rows.append(f'<tr><td class="group" colspan="{1 + len(SPREAD)}">{escape(str(one.point))}</td></tr>')
        rows += [_row(row) for row in latency_rows(one)]
    return _table(("", *SPREAD), rows)


def _faults(figures: Sequence[Figures]) -> str:
    rows = [
        f'<tr><td>{escape(str(one.point))}</td><td class="text">{escape(fault.kind)}</td>'
        f'<td>{fault.count:,}</td><td class="text">{escape(fault.message)}</td></tr>'
        for one in figures
        for fault in one.faults
    ]
    if not rows:
        return ""
    table = _table(("load point", "error", "requests", "first message"), rows)
    return f'<h2>Refused and failed</h2><div class="card wide">{table}</div>'


def _settings(report: Report) -> Iterable[tuple[str, str]]:
    for name, value in settings(report.order, report.model).items():
        if name == "goals":
            yield "goals", goals_text(report.order.goals)
        elif value not in (None, {}):
            yield name, str(value)
    yield "levels", ", ".join(f"{point.level:g}" for point in report.order.points)


def _machine(report: Report) -> Iterable[tuple[str, str]]:
    machine = report.machine
    yield "processor", f"{machine.cpu}, {machine.cores} cores"
    yield "memory", f"{machine.memory_bytes / 1e9:.1f} GB"
    yield "system", machine.system
    yield "Python", machine.python
    yield "headrace", report.version
    if report.server:
        yield "server", report.server


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in pairs)}</dl>"


def _table(header: Sequence[str], rows: Sequence[str]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _alarming(count: int) -> str:
    return f'<span class="alarm">{count:,}</span>' if count else "0"
