"""`headrace import`: the configuration of another program as a headrace.toml."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from headrace.config.datasets import read_datasets
from headrace.config.spicepod import read_spicepod
from headrace.errors import UsageError

HELP = """Read a spicepod.yaml of Spice, and write it as a headrace.toml.

Every field that has no place in a headrace.toml is listed, and nothing is written, until each of them is
named with --without: nothing is left out silently. Secrets stay names of variables.

\b
Examples:
  headrace import spicepod.yaml
  headrace import spicepod.yaml --without datasets[].description -o headrace.toml
"""


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The spicepod.yaml.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. [default: the terminal]")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Leave this field out; [] stands for every [N]."),
    ] = None,
) -> None:
    """Import; see HELP."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    found = read_spicepod(data, without or ())
    if found.problems:
        listed = "\n  ".join(found.problems)
        raise UsageError(
            f"{file} has {len(found.problems)} fields that have no place in headrace.toml:\n  {listed}\n"
            "Take them out, or name them with --without."
        )
    read_datasets(tomllib.loads(found.text).get("datasets"))
    if output is None:
        sys.stdout.write(found.text)
        return
    try:
        with output.open("x", encoding="utf-8") as written:
            written.write(found.text)
    except FileExistsError:
        raise UsageError(f"{output} is there already: name another file") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror or error}") from None
