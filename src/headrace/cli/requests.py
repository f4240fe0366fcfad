"""`headrace requests`: what a server answers and has answered."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, note, print_json, print_json_lines, print_table
from headrace.config.settings import Settings

HELP = """List the latest requests of the server at --host and --port, of its key or with an admin key of all.

Those that run are among them. Those that have ended are in the server's memory, or with --log-requests in its
store. `headrace explain ID` shows where the time of one went.

\b
Examples:
  headrace requests --status failed
  headrace requests --status running
  headrace requests --model mini --follow
  headrace requests --limit 1000 --json
"""
HEADER = ("TIME", "ID", "ENDPOINT", "MODEL", "STATUS", "IN", "OUT", "TTFT", "TOTAL", "KEY")
Status = Literal["running", "completed", "failed", "cancelled"]
POLL_S = 1.0
PAGE = 200  # requests that are asked for at a time by --follow
SEEN = 10_000  # ids that are remembered


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    status: Annotated[
        Status | None, typer.Option(help="Only what runs, completed, failed or was cancelled.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only those of this model.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Only those of this path.", metavar="PATH")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """List them, the newest last."""
    given = {"status": status, "model": model, "endpoint": endpoint}
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    found = _page(settings, wanted, limit)
    if json and not follow:
        print_json(found)
        return
    _show(found, json=json, header=True)
    seen = deque(map(_name, found), maxlen=SEEN)
    while follow:
        time.sleep(POLL_S)
        new = [one for one in _page(settings, wanted, PAGE) if _name(one) not in seen]
        if len(new) == PAGE:
            note(f"more than {PAGE:,} requests a second: some are not shown")
        _show(new, json=json, header=False)
        seen.extend(map(_name, new))


def _name(one: dict[str, Any]) -> tuple[str, float, bool]:
    """A request is shown when it is seen to run, and at its end."""
    return one["id"], one["created"], one["status"] == "running"


def _page(settings: Settings, wanted: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    query = urlencode({**wanted, "limit": limit})
    found: list[dict[str, Any]] = call_server(settings, "GET", f"/v1/requests?{query}")["data"]
    return found[::-1]


def _show(found: list[dict[str, Any]], *, json: bool, header: bool) -> None:
    if json:
        print_json_lines(found)
    elif found or header:
        print_table([_row(one) for one in found], header=HEADER if header else ())


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    at = datetime.fromtimestamp(one["created"], UTC).astimezone()
    return (
        at.strftime("%H:%M:%S"),
        one["id"],
        one["endpoint"],
        one["model"] or "",
        one["status"] if one["error"] is None else f"{one['status']}: {one['error']}",
        "" if one["input_tokens"] is None else f"{one['input_tokens']:,}",
        "" if one["output_tokens"] is None else f"{one['output_tokens']:,}",
        "" if one["ttft_s"] is None else f"{1000 * one['ttft_s']:,.0f} ms",
        f"{1000 * one['duration_s']:,.0f} ms",
        one["key"] or "",
    )
