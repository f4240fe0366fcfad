"""`headrace redact`: a file or piped text without personal data."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.cli.terminal import JsonFlag, print_json
from headrace.cli.text_input import read_text
from headrace.tasks.pii.analyzer import THRESHOLD
from headrace.tasks.pii.redaction import redact

HELP = """Replace personal data in a text, by patterns with checksums.

The text is a FILE, or what is piped in (-). Equal data become equal placeholders such as <EMAIL_ADDRESS_1>.
--json prints the text, the entities and the vault, which has what placeholders stand for.

\b
Examples:
  headrace redact letter.txt
  headrace redact letter.txt --entities EMAIL_ADDRESS,PHONE_NUMBER --operator mask
"""


def command(
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="The text; - is stdin.")] = "-",
    entities: Annotated[
        str | None, typer.Option("--entities", help="What to look for, separated by commas.", metavar="A,B")
    ] = None,
    operator: Annotated[
        str, typer.Option("--operator", help="replace, redact, mask, hash or keep.")
    ] = "replace",
    threshold: Annotated[float, typer.Option("--threshold", help="Least score, 0 to 1.")] = THRESHOLD,
    json: JsonFlag = False,
) -> None:
    """Replace it; see HELP."""
    wanted = None if entities is None else [one.strip() for one in entities.split(",")]
    done = redact(read_text(file), entities=wanted, operators={"DEFAULT": operator}, threshold=threshold)
    if json:
        print_json(to_builtins(done))
    else:
        sys.stdout.write(done.text)
