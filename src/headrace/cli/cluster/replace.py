"""`headrace cluster replace`: new replicas in the place of all, one after another."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, print_json, status
from headrace.config.settings import Settings

HELP = """Start each replica of a model anew, one after another: the old one ends when the new one is ready
and its replies have ended. No request fails. Where the server has keys this needs one with the scope admin.

\b
Example:
  headrace cluster replace --model my-model
"""
OfModel = Annotated[str | None, typer.Option(help="Name of the model [default: the default model].")]


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    model: OfModel = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Replace them."""
    replace_replicas(settings, "replace", model, "replaced", json=json)


def replace_replicas(settings: Settings, action: str, model: str | None, said: str, *, json: bool) -> None:
    """Have a server replace a model's replicas, and print how many; `said` is what became of them."""
    with status() as show:  # each replica loads the model and ends its replies
        show("starting new replicas, one after another (headrace cluster status shows them)")
        body = {} if model is None else {"model": model}
        found = call_server(settings, "POST", f"/v1/cluster/{action}", body)
    if json:
        print_json(found)
    else:
        print(f"{found['id']}: {found['replaced']} of its replicas {said}")
