"""Terminal output of `headrace bench serve`: progress bar, a table per load point, a summary."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.bench.serve.formatting import (
    SPREAD,
    cached_share,
    goals_text,
    latency_rows,
    milliseconds,
    number,
    of_user,
)
from headrace.bench.serve.metrics import Figures
from headrace.bench.serve.recommendation import recommend
from headrace.bench.serve.runner import ProgressCallback, Report
from headrace.bench.serve.workload import DatasetWorkload
from headrace.cli.terminal import note

WIDTH = 110  # if the output is not a terminal


@contextmanager
def progress() -> Generator[ProgressCallback]:
    """A progress bar per phase, on a terminal; it disappears at the end of the phase."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar, shown = Bar(), ""

    def update(label: str, done: int, total: int) -> None:
        nonlocal bar, shown
        if label != shown:
            bar.stop()
            bar, shown = Bar(*columns, console=Console(stderr=True), transient=True), label
            bar.add_task(label, total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done)
        if done == total:
            bar.stop()
            shown = ""

    try:
        yield update
    finally:
        bar.stop()


def print_point(one: Figures) -> None:
    """One load point: rates, latencies in ms, errors."""
    share = cached_share(one)
    good = f"{one.good_share:.0%} good ({number(one.goodput_per_s)} per second)"
    cached = "" if share is None else f", {share} of prompt tokens cached"
    print(
        f"{one.point}: {one.succeeded:,} of {one.requests:,} requests in {number(one.duration_s)} s, "
        f"{number(one.requests_per_s)} per second, {number(one.output_tokens_per_s)} tok/s "
        f"({of_user(one)} per user), {good}{cached}"
    )
    table = _table(("ms", *SPREAD))
    for row in latency_rows(one):
        table.add_row(*row)
    _print(table)
    for fault in one.faults:
        verb = "refused" if fault.refused else "failed"
        note(f"{fault.count:,} {verb} ({fault.kind}): {fault.message}")


def print_report(report: Report) -> None:
    """Summary of all points, the goals, and the assumptions."""
    if len(report.figures) > 1:
        _print(_summary(report.figures))
    print(f"good: {goals_text(report.order.goals)}")
    print(f"recommended: {recommend(report.figures, report.order.goals).text}")
    if not isinstance(report.order.workload, DatasetWorkload):
        print(f"seed: {report.order.seed} (--seed {report.order.seed} sends the same prompts again)")
    for text in report.notes:
        note(f"note: {text}")


def _summary(figures: Sequence[Figures]) -> Any:
    rates = ("requests\n/s", "tok/s", "tok/s\nper user", "TTFT\np50", "\np99", "TPOT\np50", "\np99")
    table = _table((figures[0].point.form, *rates, "good", "goodput\n/s"))
    for one in figures:
        latencies = [
            "–" if found is None else milliseconds(getattr(found, rank))
            for found in (one.ttft_s, one.tpot_s)
            for rank in ("p50", "p99")
        ]
        speeds = (number(one.requests_per_s), number(one.output_tokens_per_s), of_user(one))
        goods = (f"{one.good_share:.0%}", number(one.goodput_per_s))
        table.add_row(f"{one.point.level:g}", *speeds, *latencies, *goods)
    return table


def _table(header: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True, vertical="bottom")
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
