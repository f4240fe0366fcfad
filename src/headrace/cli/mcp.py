"""`headrace mcp`: servers of tools: what they offer, what of it is approved, calls, and this as a server."""

from __future__ import annotations

import json as json_library
import sys
import webbrowser
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.api.tool_gateway import gateway_of
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table
from headrace.config.extras import extra_module
from headrace.config.mcp import read_mcp
from headrace.config.settings import Settings
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.tools.mcp.gateway import McpGateway, ServerState
    from headrace.tools.tool import ToolResult

HELP = """Use MCP servers, and approve the tools that they offer.

\b
  [mcp.shop]
  command = ["uvx", "shop-mcp==1.4.2"]
  env = { SHOP_TOKEN = "env:SHOP_TOKEN" }
  allow = ["add", "find_*"]

A tool can be used when `allow` names it and a person has approved it: `approve` starts the server, shows its
program and its tools, or what has changed of them, and writes them to headrace.lock. `login` gets tokens for
a server with `oauth` through a browser, and keeps them encrypted in the store; `logout` forgets them. `serve`
serves tools on stdin and stdout, for clients that start it: SQL over [datasets], the models, and the approved
tools.

\b
Examples:
  headrace mcp list
  headrace mcp approve shop
  headrace mcp diff shop
  headrace mcp login wiki
  headrace mcp call shop__add '{"a": 1, "b": 2}'
  headrace mcp serve
"""


class McpAction(StrEnum):
    """Subcommands."""

    LIST = "list"
    APPROVE = "approve"
    DIFF = "diff"
    CALL = "call"
    LOGIN = "login"
    LOGOUT = "logout"
    SERVE = "serve"


@takes_settings("mcp", "mcp_lock", "datasets", "sql", "store", "cache_dir", "memory", "load_on_demand")
def command(
    action: Annotated[McpAction, typer.Argument(metavar="ACTION", help="Subcommand.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Server; for call: tool; for serve: model.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Argument(metavar="JSON", help="For call: the arguments, an object.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="For approve: do not ask.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run the subcommand; see HELP."""
    if action is McpAction.SERVE:
        extra_module("tools", "headrace.cli.mcp_serve", "mcp", "jsonschema_rs").run(name, settings)
        return
    servers = read_mcp(settings.mcp)
    if not servers:
        raise UsageError("there are no servers of tools: name them in [mcp.NAME] of headrace.toml")
    if action is McpAction.LOGOUT:
        _logout(settings, name, list(servers), json)
        return
    gateway = gateway_of(settings)
    try:
        if action is McpAction.LIST:
            _list(gateway, list(servers) if name is None else [name], json)
        elif not name:
            raise UsageError(f"mcp {action.value} needs a name: headrace mcp {action.value} NAME")
        elif action is McpAction.LOGIN:
            _login(gateway, name, json)
        elif action is McpAction.CALL:
            _call(gateway, name, arguments or "{}", json)
        else:
            _approve(gateway, name, yes=yes, only_show=action is McpAction.DIFF)
    finally:
        gateway.close()


_SHOWN = 64
"""Characters of a name in a table."""


def _short(name: str) -> str:
    """Of a name that is refused for its length: a table of it would be unreadable."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"


def _list(gateway: McpGateway, names: list[str], json: bool) -> None:
    states = [gateway.checked(name) for name in names]
    if json:
        print_json([_fields(state) for state in states])
        return
    rows = [(one.name, _short(tool.name), tool.standing, tool.reason) for one in states for tool in one.tools]
    if rows:
        print_table(rows, header=("SERVER", "TOOL", "STATUS", "WHY"), fit=True)
    for state in states:
        if state.error is not None:
            note(f"{state.name}: {state.error}")
            if state.said:
                note(f"{state.name} wrote: {state.said}")


def _fields(state: ServerState) -> dict[str, Any]:
    tools = [{"name": one.name, "status": one.standing, "reason": one.reason} for one in state.tools]
    return {"name": state.name, "error": state.error, "tools": tools}


def _approve(gateway: McpGateway, name: str, *, yes: bool, only_show: bool) -> None:
    pin, difference = gateway.difference(name)
    if not difference:
        print(f"{name} is as it was approved")
        return
    print(difference)
    if only_show:
        raise typer.Exit(1)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"approve {name} on a terminal, or with --yes after reading the above")
        if not typer.confirm(f"approve {name} with these {len(pin.tools)} tools?"):
            raise typer.Exit(1)
    gateway.approve(name, pin)
    print(f"approved {name}: {len(pin.tools)} tools")


def _login(gateway: McpGateway, name: str, json: bool) -> None:
    async def shown(url: str) -> None:
        note(f"open this address in a browser on this machine, and log in:\n{url}")
        if sys.stderr.isatty():
            webbrowser.open(url)

    tools = gateway.log_in(name, shown)
    if json:
        print_json({"name": name, "tools": tools})
    else:
        print(f"logged in to {name}, which lists {tools} tools: headrace mcp approve {name}")


def _logout(settings: Settings, name: str | None, names: list[str], json: bool) -> None:
    if name not in names:
        raise UsageError(f"mcp logout needs the name of a server, one of {', '.join(names)}")
    vault = extra_module("tools", "headrace.providers.token_vault", "cryptography").vault_of(settings)
    removed = vault.remove(name)
    if json:
        print_json({"name": name, "removed": removed})
    else:
        print(f"forgot the tokens of {name}" if removed else f"there are no tokens of {name}")


def _call(gateway: McpGateway, name: str, text: str, json: bool) -> None:
    try:
        arguments = json_library.loads(text)
    except ValueError as error:
        raise UsageError(f"the arguments are no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise UsageError("the arguments are a JSON object, such as '{\"a\": 1}'")
    result: ToolResult = gateway.call(name, cast("dict[str, Any]", arguments))
    if json:
        shown = {"text": result.text, "structured": result.structured, "is_error": result.is_error}
        print_json(shown | {"cut": result.cut, "images": [one.media_type for one in result.images]})
    else:
        print(result.text)
    if result.is_error:
        raise typer.Exit(1)
