"""`headrace replay`: compute kept requests again, and compare."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError

HELP = """Compute requests of the journal again, and say whether they give the same bytes.

ID is that of a request or of its reply. The journal is read from its folder (--journal, or [journal] of
headrace.toml), also while a server writes it; the command loads the models itself. The exit code is 1 if a
reply differs, with --with only if one fails. --node-usd-per-hour gives seconds a price.

\b
Examples:
  headrace replay req_5f0c8c6f7a3b4b9f8f3f0d1c2b3a4958 --journal journal
  headrace replay chatcmpl-5f0c8c6f7a3b4b9f8f3f0d1c2b3a4958 --explain
  headrace replay req_5f0c8c6f7a3b4b9f8f3f0d1c2b3a4958 --with weights=int8
  headrace replay --all --since 1d --json
  headrace replay --all --since 1d --with weights=int4
"""


@takes_settings("journal", "node_usd_per_hour", *MODEL_SETTINGS)
def command(
    request_id: Annotated[str | None, typer.Argument(metavar="ID", help="Id of a request or reply.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All kept requests.")] = False,
    since: Annotated[str, typer.Option(help="With --all: only requests since then.", metavar="AGE")] = "7d",
    explain: Annotated[bool, typer.Option("--explain", help="Show where and why replies differ.")] = False,
    variant: Annotated[
        str | None,
        typer.Option("--with", help="weights=TYPE or model=NAME: show both answers and their cost."),
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Replay; see HELP."""
    if every == (request_id is not None):
        raise UsageError("name one request, or give --all")
    module = importlib.import_module("headrace.cli.replay_run")
    code: int = module.run(request_id, since, variant, settings, explain=explain, json=json)
    if code:
        raise typer.Exit(code)
