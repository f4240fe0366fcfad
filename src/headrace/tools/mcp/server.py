"""Tools as a server of MCP, over HTTP within another application or over stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_PARAMS
from starlette.types import Receive, Scope, Send

from headrace import __version__
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.tools.tool import ServedTools, ToolResult, ToolSpec, UnknownTool

Context = ServerRequestContext[Any, Any]
CallOf = Callable[[Context], CallContext]
"""The call that a message belongs to: it says whose tools they are."""

INSTRUCTIONS = "Tools of a Headrace server: SQL over its datasets, its models, and tools of other servers."


def mcp_server(tools: ServedTools, call_of: CallOf) -> Server[Any]:
    """A server of `tools`. Errors of a call are its result, which models read and can act on."""

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        specs = await asyncio.to_thread(tools.specs, call_of(context))  # it may read files
        return types.ListToolsResult(tools=[_listed(spec) for spec in specs])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            result = await tools.run(params.name, params.arguments or {}, call_of(context))
        except UnknownTool as error:
            raise MCPError(INVALID_PARAMS, error.message) from None
        except HeadraceError as error:
            result = ToolResult(text=error.message, is_error=True)
        return _sent(result)

    return Server(
        "headrace",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _listed(spec: ToolSpec) -> types.Tool:
    return types.Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=spec.parameters,
        output_schema=spec.output,
        annotations=types.ToolAnnotations(
            read_only_hint=spec.reads_only, idempotent_hint=spec.idempotent or spec.reads_only
        ),
    )


def _sent(result: ToolResult) -> types.CallToolResult:
    images = [types.ImageContent(data=one.data, mime_type=one.media_type) for one in result.images]
    return types.CallToolResult(
        content=[types.TextContent(text=result.text), *images],
        structured_content=result.structured,
        is_error=result.is_error,
    )


class McpHttp:
    """A server as an ASGI application. It keeps no sessions: each request is one of its key."""

    def __init__(self, server: Server[Any]) -> None:
        self._manager = StreamableHTTPSessionManager(server, stateless=True)
        self._owner: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._owner is None:
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._run(started))
            self._started = started
        await asyncio.shield(self._started)
        await self._manager.handle_request(scope, receive, send)

    async def close(self) -> None:
        """End what runs."""
        self._stop.set()
        if self._owner is not None:
            with suppress(asyncio.CancelledError):
                await self._owner

    async def _run(self, started: asyncio.Future[None]) -> None:
        async with self._manager.run():
            started.set_result(None)
            await self._stop.wait()


async def serve_stdio(server: Server[Any]) -> None:
    """Serve on stdin and stdout until stdin ends."""
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
