"""`headrace cluster update`: new weights of a model, replica by replica."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import Settings

HELP = """Take new weights of a model from its files, replica by replica. No request fails: replies that have
begun end with the old weights, however long they take. Put the new files at the model's path first, for
example by changing a symbolic link. The tokenizer and the chat template must be the same. Where the server
has keys this needs one with the scope admin.

\\b
Example:
  ln -sfn models/v2 models/current; headrace cluster update --model current
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    model: Annotated[str | None, typer.Option(help="Name of the model [default: the default model].")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Update it."""
    found = call_server(settings, "POST", "/v1/cluster/update", {} if model is None else {"model": model})
    if json:
        print_json(found)
    else:
        print(f"{found['replaced']} replicas of {found['id']} have the new weights")
