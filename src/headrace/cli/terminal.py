"""Terminal output of commands: progress bars, tables, JSON, sizes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def size(nbytes: float) -> str:
    """Format a number of bytes: `1.5 GB` (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[str]], *, header: Sequence[str] = ()) -> None:
    """Print aligned columns."""
    lines = [list(header), *map(list, rows)] if header else list(map(list, rows))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
    for line in lines:
        print("  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)).rstrip())


def note(message: str) -> None:
    """Print a message to stderr, which does not go into a pipe."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(label: str) -> Generator[Callable[[int, int], None]]:
    """A function of (bytes done, total bytes) that draws a bar on a terminal and does nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("{task.description}", *columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None, visible=False)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield update


@contextmanager
def status() -> Generator[Callable[[str], None]]:
    """A function that shows the current phase on a terminal and does nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as shown:
        yield lambda text: shown.update(text)
