"""`headrace cluster status`: the replicas of a running server."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, is_styled, note, print_json, print_table
from headrace.config.settings import Settings

HELP = """Show the replicas of the server at --host and --port: nodes, requests, steps, use of the KV cache,
and which part of the prompts came from it. COSTS says whose speed routing assumes of a replica: its own, as
it has measured it, the others', or a guess; with --json the seconds of a step and of a token. Where the
server has keys this needs one with the scope admin.

\b
Example:
  headrace cluster status
  headrace cluster status --watch 2
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    watch: Annotated[
        float | None, typer.Option(min=0.2, metavar="SECONDS", help="Show them again and again.")
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Show them."""
    _show(settings, json)
    while watch is not None:
        time.sleep(watch)
        if not json and is_styled(sys.stdout):
            print("\x1b[2J\x1b[H", end="")
        _show(settings, json)


def _show(settings: Settings, json: bool) -> None:
    found = call_server(settings, "GET", "/v1/cluster")
    if json:
        print_json(found["data"])
        return
    for model in found["data"]:
        print(_summary(model))
        if model["problem"]:
            note(f"a replica of {model['id']} did not start: {model['problem']}")
    rows = [_row(model["id"], one) for model in found["data"] for one in model["replicas"]]
    if not rows:
        note("no replicas run: start them with `headrace cluster serve`, or send a request")
        return
    header = [
        "MODEL",
        "REPLICA",
        "NODE",
        "PID",
        "STATE",
        "ROLE",
        "REQUESTS",
        "RUNNING",
        "WAITING",
        "KV USED",
        "CACHED",
        "STEPS",
        "COSTS",
    ]
    print_table(rows, header=header)


def _summary(model: dict[str, Any]) -> str:
    """Of all replicas of a model together."""
    nodes, count, wanted = len(model["nodes"]), len(model["replicas"]), model["wanted"]
    words = [
        f"{model['id']}: {count} replica{'' if count == 1 else 's'}"
        + f" ({wanted} wanted)" * (count != wanted)
        + f", {model['starting']} starting" * (model["starting"] > 0),
        f"on {nodes} node{'' if nodes == 1 else 's'}",
        f"routed by {model['policy']}",
        f"{model['in_flight']} request{'' if model['in_flight'] == 1 else 's'}",
        f"{model['waiting']} wait for a replica",
    ]
    if model["hit_rate"] is not None:
        words.append(f"{model['hit_rate']:.0%} of prompts cached")
    if model["attained"] is not None:
        words.append(f"{model['attained']:.1%} kept the targets")
    return ", ".join(words)


def _row(model: str, one: dict[str, Any]) -> list[str]:
    cached = f"{one['cached_tokens'] / one['prompt_tokens']:.0%}" if one["prompt_tokens"] else "-"
    numbers = [str(one[name]) for name in ("requests", "running", "waiting")]
    return [
        *(model, str(one["replica"]), one["node"], str(one["pid"]), one["state"], one["role"], *numbers),
        *(f"{one['kv_used']:.0%}", cached, f"{one['steps']:,}", one["costs_from"] or "-"),
    ]
