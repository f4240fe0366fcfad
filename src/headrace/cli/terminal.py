"""Terminal output of commands: progress bars, tables, JSON, sizes, dim text."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

if TYPE_CHECKING:
    from headrace.inference.events import ParameterWarning

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
JsonLinesFlag = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each text instead.")]
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
_LEAST_COLUMN = 20  # characters; a narrower last column would say nothing


def size(nbytes: float) -> str:
    """Format a number of bytes: `1.5 GB` (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def printable(text: str) -> str:
    """A text, of which what would steer a terminal is shown instead: clients choose paths and names."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text)


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), fit: bool = False, cut: bool = False
) -> None:
    """Print aligned columns. On a terminal with `fit` the last one is cut to the terminal's width, with `cut`
    each line."""
    lines = [[printable(entry) for entry in row] for row in ([header, *rows] if header else rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
    width = shutil.get_terminal_size().columns
    room = width - sum(widths[:-1]) - 2 * len(widths[:-1])
    for line in lines:
        if fit and sys.stdout.isatty() and len(line[-1]) > room >= _LEAST_COLUMN:
            line[-1] = textwrap.shorten(line[-1], room, placeholder=" …")
        text = "  ".join(entry.ljust(own) for entry, own in zip(line, widths, strict=True)).rstrip()
        print(f"{text[: width - 1]}…" if cut and sys.stdout.isatty() and len(text) > width else text)


def print_rows(rows: Sequence[Sequence[str]], *, header: Sequence[str]) -> None:
    """A table on a terminal; in a pipe a line for each row, with tabs between its columns and no header."""
    if sys.stdout.isatty():
        print_table([[" ".join(column.split()) for column in row] for row in rows], header=header, fit=True)
        return
    for row in rows:
        print("\t".join(" ".join(column.split()) for column in row))


def print_json_lines(values: Sequence[object]) -> None:
    """Print each value as JSON on a line of its own."""
    for value in values:
        print(json.dumps(value, ensure_ascii=False))


def note(message: str) -> None:
    """Print a message to stderr, which does not go into a pipe."""
    print(message, file=sys.stderr, flush=True)


def warn(warnings: Sequence[ParameterWarning], shown: set[str] | None = None) -> None:
    """Print warnings to stderr; those in `shown` were printed before, and new ones are added to it."""
    for warning in warnings:
        if shown is None or warning.message not in shown:
            note(f"warning: {warning.message}")
        if shown is not None:
            shown.add(warning.message)


def is_styled(stream: TextIO) -> bool:
    """Whether text on a stream may be dimmed: on a terminal, unless NO_COLOR or TERM=dumb asks for plain."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def aside(message: str) -> None:
    """Print a message to stderr, dimmed where that is possible."""
    note(f"{DIM}{message}{PLAIN}" if is_styled(sys.stderr) else message)


@contextmanager
def progress_bar(label: str, *, unit: str | None = None) -> Generator[Callable[[int, int], None]]:
    """A function of (done, total) that draws a bar on a terminal and does nothing elsewhere; they are bytes
    unless `unit` says what they count."""
    if not is_styled(sys.stderr):
        yield lambda done, total: None
        return
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    sizes = (rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn())
    counts = (rich_progress.MofNCompleteColumn(), rich_progress.TextColumn(unit or ""))
    columns = (BarColumn(), *(sizes if unit is None else counts), TimeRemainingColumn())
    with Progress("{task.description}", *columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None, visible=False)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield update


@contextmanager
def status() -> Generator[Callable[[str], None]]:
    """A function that shows the current phase on a terminal and does nothing elsewhere."""
    if not is_styled(sys.stderr):
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as shown:
        yield lambda text: shown.update(text)
