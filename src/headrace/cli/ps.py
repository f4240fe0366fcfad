"""`headrace ps`: the models of a running server."""

from __future__ import annotations

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.config.settings import Settings

HELP = """List the models of the server at --host and --port, their state and memory use.

\b
Examples:
  headrace ps
  headrace ps --port 9000 --json
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(json: JsonFlag = False, *, settings: Settings) -> None:
    """List them."""
    models = call_server(settings, "GET", "/v1/models")["data"]
    if json:
        print_json(models)
        return
    rows = [
        (
            model["id"],
            model["state"],
            size(model["memory_bytes"]) if model["memory_bytes"] else "",
            f"{model['context_length']:,}" if model["context_length"] else "",
            str(model["in_use"]),
            str(model["restarts"]),
        )
        for model in models
    ]
    print_table(rows, header=("NAME", "STATE", "MEMORY", "CONTEXT", "IN USE", "RESTARTS"))
