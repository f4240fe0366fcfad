"""`headrace requests`: what a server answers and has answered."""

from __future__ import annotations

import shutil
import sys
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

HELP = """List the latest requests of the server at --host and --port: of your key, or with an admin key all.

Running requests are included. Ended ones are in the server's memory, with --log-requests in its store, and
with --journal in its journal, also from before a restart. `headrace explain ID` shows where the time of a
request went. Columns that do not fit the terminal are left out; --json has all.

\b
Examples:
  headrace requests --status failed
  headrace requests --status running
  headrace requests --model mini --follow
  headrace requests --limit 1000 --json
"""
HEADER = ("TIME", "ID", "ENDPOINT", "MODEL", "STATUS", "IN", "OUT", "TTFT", "TOTAL", "KEY")
LEFT_OUT_FIRST = ("KEY", "TTFT", "IN", "OUT", "MODEL", "TOTAL", "ENDPOINT")
"""What is left out where the terminal is narrow, in this order."""
Status = Literal["running", "completed", "failed", "cancelled"]
POLL_S = 1.0
PAGE = 200  # requests that are asked for at a time by --follow
SEEN = 10_000  # ids that are remembered


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    status: Annotated[Status | None, typer.Option(help="Only requests with this status.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only those of this model.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Only those of this path.", metavar="PATH")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of requests.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show new ones, until Ctrl-C.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """List them, the newest last."""
    given = {"status": status, "model": model, "endpoint": endpoint}
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    found = _page(settings, wanted, max(limit, PAGE) if follow else limit)
    seen = deque(map(_name, found), maxlen=SEEN)
    if json and not follow:
        print_json(found)
        return
    table = _Table()
    show = print_json_lines if json else table.show
    show(found[-limit:])
    while follow:
        time.sleep(POLL_S)
        new = [one for one in _page(settings, wanted, PAGE, is_whole=False) if _name(one) not in seen]
        if len(new) == PAGE:
            note(f"more than {PAGE:,} requests a second: some are not shown")
        show(new)
        seen.extend(map(_name, new))


def _name(one: dict[str, Any]) -> tuple[str, float, bool]:
    """A request is shown when it is seen to run, and at its end."""
    return one["id"], one["created"], one["status"] == "running"


def _page(
    settings: Settings, wanted: dict[str, Any], limit: int, *, is_whole: bool = True
) -> list[dict[str, Any]]:
    """As many as there are, oldest first. A page of the server may have fewer although there are more: unless
    `is_whole` the first is enough."""
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        query = urlencode({**wanted, **after, "limit": limit - len(found)})
        page: dict[str, Any] = call_server(settings, "GET", f"/v1/requests?{query}")
        found += page["data"]
        if len(found) >= limit or not (page["has_more"] and is_whole):
            return found[::-1]
        after = {"after": page["last_id"]}


class _Table:
    """The lines of a table that comes in parts, with the columns for which the terminal has room."""

    def __init__(self) -> None:
        self._columns: list[int] | None = None

    def show(self, found: list[dict[str, Any]]) -> None:
        """The next lines; the header before the first."""
        rows, header = [_row(one) for one in found], ()
        if self._columns is None:
            self._columns, header = _fitting(rows), HEADER
        shown = [[row[place] for place in self._columns] for row in rows]
        if shown or header:
            print_table(shown, header=[header[place] for place in self._columns] if header else (), cut=True)


def _fitting(rows: list[tuple[str, ...]]) -> list[int]:
    """The places of the columns that are shown."""
    columns = list(range(len(HEADER)))
    if not sys.stdout.isatty():
        return columns
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    room = shutil.get_terminal_size().columns
    for name in LEFT_OUT_FIRST:
        if sum(widths[place] + 2 for place in columns) - 2 <= room:
            break
        columns.remove(HEADER.index(name))
    return columns


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
