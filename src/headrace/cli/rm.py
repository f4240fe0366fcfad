"""`headrace rm`: delete a hub model."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.terminal import JsonFlag, print_json, size
from headrace.weights.hub.resolver import remove

HELP = """Delete a hub model from this machine, all its revisions.

Only the hub's cache is changed; your own folders are not.

\b
Example:
  headrace rm Qwen/Qwen3-0.6B
"""


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="OWNER/NAME, as `headrace list` shows it.")],
    json: JsonFlag = False,
) -> None:
    """Delete it."""
    freed = remove(model)
    if json:
        print_json({"name": model, "freed_bytes": freed})
    else:
        print(f"deleted {model}, {size(freed)} freed")
