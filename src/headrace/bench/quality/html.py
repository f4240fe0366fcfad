"""A quality report as one self-contained HTML page, with quality over bytes and over speed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headrace.bench.quality.report import QualityReport
from headrace.loading.model_record import MeasuredForm

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;
color-scheme:light dark}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;
border-bottom:1px solid #8884;text-align:left}svg{width:24rem;max-width:100%;margin-right:1rem}
svg text{font-size:11px;fill:currentColor}svg .axis{stroke:#8888}code{white-space:pre-wrap}
circle{fill:#2a6f97}circle.now{fill:#c1121f}.note{opacity:.7}"""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 400, 280, 60, 40, 16, 100
Point = tuple[float, float, str, bool]


def html(report: QualityReport, forms: Sequence[MeasuredForm]) -> str:
    """`forms` are all that were measured of the same weights, the report's too. Every text is escaped."""
    title = f"{report.model} against {report.reference}"
    points = [
        (one, one.kl.mean, str(one.form), one.form == report.form)
        for one in forms
        if one.reference_fingerprint == report.reference_fingerprint
    ]
    by_bytes: list[Point] = [(one.bytes / 1e6, kl, name, now) for one, kl, name, now in points if one.bytes]
    by_speed: list[Point] = [(one.tokens_per_s, kl, name, now) for one, kl, name, now in points]
    if report.reference_bytes:
        by_bytes.append((report.reference_bytes / 1e6, 0.0, "reference", False))
        by_speed.append((report.reference_tokens_per_s, 0.0, "reference", False))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="note">{report.tokens:,} tokens in {report.windows} windows, {escape(report.source)};
{escape(str(report.form))}</p>
{_table(figures(report), ("", "", "95 % interval"))}
<h2>Quality over bytes and speed</h2>
{_plot("KL divergence over megabytes of weights", "MB", by_bytes)}
{_plot("KL divergence over tokens per second of one stream", "tokens/s", by_speed)}
<p class="note">Forms of these weights that were measured on this machine against the same reference. Lower
is better; to the left is smaller, to the right is faster.</p>
<h2>Where they differ most</h2>
{_table([(f"{one.kl:.3f}", one.token, one.before[-80:]) for one in report.worst], ("KL", "token", "after"))}
</body></html>
"""


def figures(report: QualityReport) -> list[tuple[str, str, str]]:
    """Rows of a table: what, how much, its interval."""
    kl, ratio = report.kl, report.perplexity_ratio_interval
    rows = [
        ("KL mean", f"{kl.mean:.5f} nats", _span(kl.interval, ".5f")),
        ("KL median", f"{kl.median:.5f} nats", ""),
        ("KL 99.9 %", f"{kl.p999:.4f} nats", ""),
        ("top-1 agrees", f"{report.top1:.2%}", _span(report.top1_interval, ".2%")),
        ("perplexity", f"{report.perplexity:.4f}", _span(report.perplexity_interval, ".4f")),
        ("reference's", f"{report.reference_perplexity:.4f}", ""),
        ("ratio", f"{report.perplexity_ratio - 1:+.2%}", _span((ratio[0] - 1, ratio[1] - 1), "+.2%")),
    ]
    if report.greedy is not None:
        part = report.greedy
        whole = f"{part.same:.0%} the same to {part.tokens}"
        rows.append(("greedy differs after", f"{part.median:g} tokens (median)", whole))
    against = f"{report.reference_tokens_per_s:.1f} of the reference" if report.reference_tokens_per_s else ""
    rows.append(("tokens/s, one stream", f"{report.tokens_per_s:.1f}", against))
    if report.bytes and report.reference_bytes:
        share = f"{report.bytes / report.reference_bytes:.0%} of the reference's"
        rows.append(("weights", f"{report.bytes / 1e6:,.1f} MB", share))
    return rows


def _span(interval: tuple[float, float], form: str) -> str:
    return f"{interval[0]:{form}} to {interval[1]:{form}}"


def _table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td><code>{escape(cell)}</code></td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _plot(title: str, unit: str, points: Sequence[Point]) -> str:
    across = max((x for x, *_ in points), default=0.0) or 1.0
    up = max((y for _, y, *_ in points), default=0.0) or 1.0
    right, low = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{low}H{right}"/>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 6}" text-anchor="end">{up:.2g}</text>',
        f'<text x="{_LEFT - 6}" y="{low}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{low + 16}" text-anchor="end">{across:,.4g} {escape(unit)}</text>',
        f'<text x="{_LEFT}" y="{low + 16}">0</text>',
    ]
    for x, y, name, now in points:
        at = _LEFT + (right - _LEFT) * x / across, low - (low - _TOP) * y / up
        mark = ' class="now"' if now else ""
        shown = escape(name.replace("--quantization ", "").replace(" --kv-cache-dtype", ", keys"))
        parts.append(f'<circle{mark} cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4"><title>{shown}</title></circle>')
        parts.append(f'<text x="{at[0] + 7:.1f}" y="{at[1] + 4:.1f}">{shown}</text>')
    label = escape(title)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
