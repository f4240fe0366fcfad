"""`headrace cluster leave`: drain the replicas of this machine, for the end of a node."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.terminal import JsonFlag, note, print_json
from headrace.cluster.leaving import leave

HELP = """Drain the replicas that Ray has started on this machine, before it is shut down. Each asks its
server, which sends its requests elsewhere and ends it. Exit code 1 if some still run after --timeout.

\b
Example:
  headrace cluster leave --timeout 30
"""


def command(
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for their end.")] = 60.0,
    json: JsonFlag = False,
) -> None:
    """Drain them."""
    asked, left = leave(timeout)
    if json:
        print_json({"asked": asked, "left": left})
    elif not asked:
        note("no replica of another machine's server runs here")
    else:
        print(f"{len(asked) - len(left)} of {len(asked)} replicas have ended")
    raise typer.Exit(bool(left))
