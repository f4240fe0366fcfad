"""`headrace stop`: unload a model of a running server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import Settings

HELP = """Unload a model of the server at --host and --port as soon as no request uses it. The next
request loads it again. Where the server has keys this needs one with the scope admin.

\b
Example:
  headrace stop my-model
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name of the model, as `headrace ps` shows it.")
    ],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Unload it."""
    card = call_server(settings, "POST", f"/v1/models/{quote(model)}/unload")
    if json:
        print_json(card)
    elif card["state"] == "unloaded":
        print(f"{card['id']} is unloaded")
    else:
        print(f"{card['id']} is unloaded when {card['in_use']} requests have ended")
