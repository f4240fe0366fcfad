"""`headrace cluster status`: the replicas of a running server."""

from __future__ import annotations

from typing import Any

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, note, print_json, print_table
from headrace.config.settings import Settings

HELP = """Show the replicas of the server at --host and --port: requests, steps, use of the KV cache, and
which part of the prompts came from it. Where the server has keys this needs one with the scope admin.

\\b
Example:
  headrace cluster status
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Show them."""
    found = call_server(settings, "GET", "/v1/cluster")
    if json:
        print_json(found["data"])
        return
    rows = [_row(model["id"], one) for model in found["data"] for one in model["replicas"]]
    if not rows:
        note("no replicas run: start them with `headrace cluster serve`, or send a request")
        return
    header = [
        "MODEL",
        "REPLICA",
        "PID",
        "STATE",
        "ROLE",
        "REQUESTS",
        "RUNNING",
        "WAITING",
        "KV USED",
        "CACHED",
        "STEPS",
    ]
    print_table(rows, header=header)


def _row(model: str, one: dict[str, Any]) -> list[str]:
    cached = f"{one['cached_tokens'] / one['prompt_tokens']:.0%}" if one["prompt_tokens"] else "-"
    numbers = [str(one[name]) for name in ("requests", "running", "waiting")]
    return [
        *(model, str(one["replica"]), str(one["pid"]), one["state"], one["role"], *numbers),
        *(f"{one['kv_used']:.0%}", cached, f"{one['steps']:,}"),
    ]
