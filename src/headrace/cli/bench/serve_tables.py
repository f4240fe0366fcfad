"""What `headrace bench serve` shows: a bar while it runs, a table for each point, one of all at the end."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.bench.serve.figures import Figures
from headrace.bench.serve.session import Progress, Report
from headrace.bench.serve.wording import (
    LATENCIES,
    SPREAD,
    goals_text,
    milliseconds,
    number,
    of_user,
    spread_row,
)
from headrace.cli.terminal import note

WIDTH = 110  # where output is no terminal


@contextmanager
def progress() -> Generator[Progress]:
    """A bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars("{task.description}", *columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("")
        shown = ""

        def update(label: str, done: int, total: int) -> None:
            nonlocal shown
            if label != shown:
                bars.reset(task)
                shown = label
            bars.update(task, description=label, completed=done, total=total)

        yield update


def print_point(one: Figures) -> None:
    """Latencies of one point in ms, with its rates above them and what failed below."""
    table = _table(str(one.point), ("ms", *SPREAD))
    for name, field, _ in LATENCIES:
        table.add_row(name, *spread_row(getattr(one, field)))
    table.caption = (
        f"{one.succeeded:,} of {one.requests:,} in {number(one.duration_s)} s: "
        f"{number(one.requests_per_s)} requests/s, {number(one.output_tokens_per_s)} tok/s, "
        f"{of_user(one)} tok/s of a user"
    )
    _print(table)
    for fault in one.faults:
        verb = "refused" if fault.refused else "failed"
        note(f"{fault.count:,} {verb} ({fault.kind}): {fault.message}")


def print_report(report: Report) -> None:
    """All points beside each other, the goals, and what was assumed."""
    if len(report.figures) > 1:
        _print(_summary(report.figures))
    print(f"goals: {goals_text(report.order.goals)}")
    for one in report.figures:
        print(f"  {one.point}: {one.good_share:.0%} good, goodput {number(one.goodput_per_s)} requests/s")
    for text in report.notes:
        note(f"note: {text}")


def _summary(figures: Sequence[Figures]) -> Any:
    header = (
        figures[0].point.form,
        "requests/s",
        "tok/s",
        "tok/s of a user",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "TPOT p99",
    )
    table = _table("", header)
    for one in figures:
        latencies = [
            "–" if found is None else milliseconds(getattr(found, rank))
            for found in (one.ttft_s, one.tpot_s)
            for rank in ("p50", "p99")
        ]
        rates = (number(one.requests_per_s), number(one.output_tokens_per_s), of_user(one))
        table.add_row(f"{one.point.level:g}", *rates, *latencies)
    return table


def _table(title: str, header: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
