"""`headrace adapt forget`: delete what is kept."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.adapt import actions
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import Settings
from headrace.errors import UsageError

HELP = """Delete what is kept: of a key, of one reply, or all; what was learned from it goes, too.

\b
Examples:
  headrace adapt forget --key alice
  headrace adapt forget --reply chatcmpl-3f2a
  headrace adapt forget --all
"""


@takes_settings("store")
def command(
    key: Annotated[str | None, typer.Option(help="Delete all examples of this key.")] = None,
    reply: Annotated[str | None, typer.Option(help="Delete the example of the reply with this id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all examples.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Delete it; see HELP."""
    if (key is not None) + (reply is not None) + everything != 1:
        raise UsageError("forget takes one of --key NAME, --reply ID and --all")
    with opened_store(settings) as store:
        gone = actions.forget(store, key, reply)
    if json:
        print_json({"forgotten": gone.examples, "students": gone.students})
        return
    print(_said(gone.examples, key, reply))
    if gone.students:
        print(f"students that had learned from them are deleted: {', '.join(gone.students)}")


def _said(examples: int, key: str | None, reply: str | None) -> str:
    if examples:
        return f"{examples:,} examples are deleted" if examples > 1 else "1 example is deleted"
    if key is not None:
        return f"nothing is deleted: no examples of a key named {key!r} are kept"
    return f"nothing is deleted: no {'reply ' + repr(reply) if reply is not None else 'example'} is kept"
