"""The texts that commands of tasks read: arguments, the lines of a file, or those that are piped in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.prompt_input import MAX_CHARACTERS, piped_text
from headrace.cli.terminal import note
from headrace.errors import UsageError

FileFlag = Annotated[
    str | None,
    typer.Option("--file", "-f", help="Read a text from each line of a file; - is stdin.", metavar="FILE"),
]


def read_texts(given: Sequence[str] | None, file: str | None, name: str) -> list[str]:
    """The arguments called `name`, or the lines that are not empty of a file or of stdin.

    Raises UsageError for both, for none, and for a file that cannot be read.
    """
    if given and file is not None:
        raise UsageError(f"both {name} and --file are given: drop one of them", param="file")
    if given:
        for text in given:
            _tell_of_file(text, name)
        return list(given)
    source = file or "-"
    remedy = f"give {name}, --file FILE, or pipe lines in"
    text = piped_text(remedy) if source == "-" else read_text(source)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        where = "stdin" if source == "-" else source
        raise UsageError(f"{where} has no text: {remedy}", param=name.lower())
    return lines


def _tell_of_file(text: str, name: str) -> None:
    """A file's name in the place of a text is a mistake more often than it is the text."""
    with suppress(OSError, ValueError):  # a text may be too long for a name, or have a zero byte
        if Path(text).expanduser().is_file():
            note(f"warning: {text} is a file, its name is taken as {name}: --file {text} reads its lines")


def read_text(file: str) -> str:
    """The text of a file, or what is piped in (-); UsageError where it cannot be read."""
    if file == "-":
        return piped_text()
    try:
        with Path(file).expanduser().open(encoding="utf-8", newline="") as opened:
            text = opened.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start:,})") from None
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{file} has more than {MAX_CHARACTERS:,} characters: split it")
    return text
