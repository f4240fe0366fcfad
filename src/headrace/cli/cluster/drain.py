"""`headrace cluster drain`: end a replica of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import Settings

HELP = """End a replica of the server at --host and --port. It gets no more requests; replies that it has
not ended after 30 s go on in another replica, with the same bytes. A new one takes its place where the model
needs so many. Where the server has keys this needs one with the scope admin.

\b
Example:
  headrace cluster drain 2 --model my-model
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    replica: Annotated[
        int, typer.Argument(metavar="REPLICA", help="Its number in `headrace cluster status`.")
    ],
    model: Annotated[str | None, typer.Option(help="Name of the model [default: the default model].")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Drain it."""
    body = {"replica": replica} if model is None else {"replica": replica, "model": model}
    found = call_server(settings, "POST", "/v1/cluster/drain", body)
    if json:
        print_json(found)
    else:
        print(f"replica {replica} of {found['id']} is draining")
