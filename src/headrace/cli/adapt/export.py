"""`headrace adapt export`: all that is kept, as it is kept."""

from __future__ import annotations

import json as json_module
import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.adapt.export import everything
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.storage.database import open_private

HELP = """Write all that is kept to FILE, a line of JSON for each example, task, student, decision and piece
of evidence; "record" says what a line is. Without FILE, or to -, it goes to the standard output.

\b
Examples:
  headrace adapt export all.jsonl
  headrace adapt export --key alice alice.jsonl
"""


@takes_settings("store")
def command(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The file to write.")] = None,
    key: Annotated[str | None, typer.Option(help="Only what belongs to this key.")] = None,
    *,
    settings: Settings,
) -> None:
    """Write them; see HELP."""
    with opened_store(settings) as store:
        lines = everything(store, key)
    text = "".join(json_module.dumps(one, ensure_ascii=False) + "\n" for one in lines)
    if file is None or file == Path("-"):
        print(text, end="")
        return
    try:
        open_private(file)  # it has what users have said
        with file.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    examples = sum(one["record"] == "example" for one in lines)
    print(f"{examples:,} examples and {len(lines) - examples:,} other records are in {file}")
