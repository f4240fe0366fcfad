"""The tools that a server has: its own, and those of its MCP servers. Made with the first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import Receive, Scope, Send

from headrace.api.tool_gateway import LIBRARIES, gateway_of
from headrace.config.extras import extra_module
from headrace.config.mcp import read_mcp
from headrace.config.settings import Settings
from headrace.inference.call_context import CallContext
from headrace.inference.store_threads import StoreThreads
from headrace.tools.tool import Arguments, ToolResult, ToolSpec
from headrace.tools.toolbox import OwnTool, OwnTools, Toolbox

if TYPE_CHECKING:
    from headrace.tools.mcp.gateway import McpGateway, ServerState

_MCP = "headrace.tools.mcp"


class McpApplication(Protocol):
    """An ASGI application that ends with `close`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        ...

    async def close(self) -> None:
        """End what runs."""
        ...


def _call_of(context: Any) -> CallContext:
    """The call of an HTTP request, which the middleware has made."""
    call: CallContext = context.request.scope["headrace.call"]
    return call


class ServerTools:
    """Belongs to the event loop. `gateway` is None where no [mcp] is configured."""

    def __init__(self, settings: Settings) -> None:
        """UsageError where settings of [mcp] are wrong."""
        read_mcp(settings.mcp)
        self._settings = settings
        self._threads = StoreThreads(1)
        self._lock = threading.Lock()
        self._gateway: McpGateway | None = None
        self._http: McpApplication | None = None
        self.own: Callable[[], Sequence[OwnTool]] = tuple
        """Makes the server's own tools. Set before the first use."""

    def configure(self, settings: Settings) -> None:
        """Take over settings, which were checked. Servers that have changed end, with what they run."""
        with self._lock:
            before, self._settings = self._settings, settings
            if (before.mcp, before.mcp_lock) != (settings.mcp, settings.mcp_lock):
                gateway, self._gateway = self._gateway, None
                if gateway is not None:
                    threading.Thread(target=gateway.close, daemon=True).start()

    def specs(self, call: CallContext) -> list[ToolSpec]:
        """See `ServedTools.specs`: as the settings are now."""
        return self.made().specs(call)

    async def run(self, name: str, arguments: Arguments, call: CallContext, key: str = "") -> ToolResult:
        """See `ServedTools.run`."""
        return await (await self.toolbox()).run(name, arguments, call, key)

    async def toolbox(self) -> Toolbox:
        """All tools. ExtraMissing without headrace[tools]."""
        return await self._threads.run(self.made)

    async def states(self, key: str) -> list[ServerState]:
        """How the servers stand that a key may use."""

        def found() -> list[ServerState]:
            gateway = self._made_gateway()
            return [] if gateway is None else gateway.states(key)

        return await self._threads.run(found)

    async def http(self) -> McpApplication:
        """The tools as an application of MCP. ExtraMissing without headrace[tools]."""
        if self._http is None:
            server = await self._threads.run(lambda: extra_module("tools", f"{_MCP}.server", *LIBRARIES))
            self._http = self._http or server.McpHttp(server.mcp_server(self, _call_of))
        assert self._http is not None
        return self._http

    async def close(self) -> None:
        """End all servers, and what runs."""
        if self._http is not None:
            await self._http.close()
        with self._lock:
            gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await asyncio.to_thread(gateway.close)
        self._threads.close()

    def made(self) -> Toolbox:
        """All tools. The first time this imports, and reads the file of approvals."""
        arguments = extra_module("tools", "headrace.tools.arguments", *LIBRARIES)
        own = OwnTools(self.own(), arguments.check_arguments)
        return Toolbox(own, self._made_gateway())

    def _made_gateway(self) -> McpGateway | None:
        with self._lock:
            settings = self._settings
            if self._gateway is None and settings.mcp:
                self._gateway = gateway_of(settings)
            return self._gateway
