"""`headrace bench serve`: load on a server of OpenAI's API, and what its clients see of it."""

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

HELP = """Put load on any server of OpenAI's API and measure what its clients see.

\b
Forms of load:
  --concurrency 1,2,4  closed loop: so many users, each asks again when it has its answer
  --rate 2,4,8         open loop: so many requests per second in a Poisson process
  --trace FILE         a trace's lengths at its times (Azure's CSV or Mooncake's JSON
                       lines, also as .xz); with the flags above its lengths alone

Prompts are made up, or those of --prompts. Made-up ones have the length asked for by the server's own
/tokenize (without one a word is taken for a token), and other words in every request, so that no prefix cache
knows them. Answers are greedy and go on to their full length.

\b
Measured, as vLLM's and NVIDIA's benchmarks do:
  TTFT     from when a request was due to the first event with output
  TPOT     (E2E - TTFT) / (output tokens - 1)
  ITL      every gap between two events with output
  E2E      from when a request was due to the last event with output
  goodput  requests per second that met every goal

Requests of --rate and --trace are due when the schedule says so, however late they are sent: a slow server is
not spared what it delays.

\b
Examples:
  headrace bench serve http://127.0.0.1:8080
  headrace bench serve http://127.0.0.1:8080 --rate 1,2,4 --prompt-tokens 128:256 --html report.html
  headrace bench serve http://127.0.0.1:8000 --trace trace.csv --speed 2 --requests 500 --png curve.png
"""


@takes_load
def command(
    url: Annotated[str, typer.Argument(help="The server; no path means /v1.")],
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - is stdout.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw latency over throughput, with matplotlib.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with curves and tables.")
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Measure it; see HELP."""
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
    """What could not be written after an hour of load is refused before."""
    if png is not None:
        check_matplotlib(", or ask for --html, which needs nothing")
    for name, path in (("json", json), ("png", png), ("html", html)):
        if path is not None and path != Path("-") and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"--{name} {path} is no file in a folder that exists", param=name)


def _check_success(figures: Sequence[Figures]) -> None:
    if not any(one.succeeded for one in figures):
        fault = figures[0].faults[0]
        raise ServerError(f"no request succeeded; the first failed with {fault.kind}: {fault.message}")
