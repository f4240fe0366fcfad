"""`headrace bench serve`: load test of an OpenAI-compatible server, measured at the clients."""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.bench.serve.html_report import html as page
from headrace.bench.serve.json_report import document
from headrace.bench.serve.metrics import Figures
from headrace.bench.serve.png_report import write_png
from headrace.bench.serve.runner import BenchConfig, Report, bench_serve
from headrace.bench.serve.target import ServerError
from headrace.cli.bench.serve_flags import order_of, takes_load
from headrace.cli.bench.serve_tables import print_point, print_report, progress
from headrace.cli.terminal import print_json
from headrace.errors import UsageError

HELP = """Load test of an OpenAI-compatible server, measured at the clients.

\b
Load patterns:
  --concurrency 1,2,4  closed loop: fixed concurrency, one request per user at a time
  --rate 2,4,8         open loop: Poisson arrivals at this rate per second
  --trace FILE         trace replay (Azure's CSV or Mooncake's JSON lines, also as
                       .xz); with one of the flags above only the trace's lengths

Prompts are synthetic, or read from --prompts. Synthetic prompts get their length from the server's own
/tokenize (if there is none, one word counts as one token). Each has different words, other ones in every run
unless --seed is given, so prefix caches do not help; the share of prompt tokens that the server had cached is
shown where its usage tells it. Answers are greedy and have the full length.

\b
Metrics, defined as in vLLM's and NVIDIA's benchmarks:
  TTFT     from when a request was due to the first event with output
  TPOT     (E2E - TTFT) / (output tokens - 1)
  ITL      every gap between two events with output
  E2E      from when a request was due to the last event with output
  goodput  requests per second that met every goal

Recommended is the load with the highest throughput at which 99 % of the requests still met every goal
(--ttft-ms, --tpot-ms, --e2e-ms); a chart shows the goals as lines.

With --rate and --trace, latencies count from the scheduled time, even if a request is sent late: delays
caused by a slow server are included.

\b
Examples:
  headrace bench serve http://127.0.0.1:8080
  headrace bench serve http://127.0.0.1:8080 --rate 1,2,4 --prompt-tokens 128:256 --html report.html
  headrace bench serve http://127.0.0.1:8000 --trace trace.csv --speed 2 --requests 500 --png curve.png
"""


@takes_load
def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server; no path means /v1.")],
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results as JSON; - is stdout.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot latency over throughput, with matplotlib.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with curves and tables.")
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Measure; see HELP."""
    order = order_of(url, given)
    _check_files(json, png, html)
    report = _measure(order, quiet=json == Path("-"))
    if json == Path("-"):
        print_json(document(report))
    elif json is not None:
        json.write_text(json_module.dumps(document(report), indent=2, ensure_ascii=False) + "\n", "utf-8")
    if html is not None:
        html.write_text(page(report), "utf-8")
    if png is not None:
        write_png(report, png)
    _check_success(report.figures)


def _measure(order: BenchConfig, *, quiet: bool) -> Report:
    with progress() as show:
        report = asyncio.run(bench_serve(order, show, (lambda one: None) if quiet else print_point))
    if not quiet:
        print_report(report)
    return report


def _check_files(json: Path | None, png: Path | None, html: Path | None) -> None:
    """Check output paths before the load starts, not an hour later."""
    if png is not None:
        check_matplotlib(", or use --html, which needs no extra")
    for name, path in (("json", json), ("png", png), ("html", html)):
        if path is not None and path != Path("-") and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"--{name} {path} is not a file in an existing folder", param=name)


def _check_success(figures: Sequence[Figures]) -> None:
    if not any(one.succeeded for one in figures):
        fault = figures[0].faults[0]
        raise ServerError(f"no request succeeded; the first failed with {fault.kind}: {fault.message}")
