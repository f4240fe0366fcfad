"""A client for the MCP conformance suite: this package's session with a server, with the URL of a server."""

from __future__ import annotations

import asyncio
import sys

from headrace.config.mcp import McpSettings
from headrace.tools.mcp.client import McpSession


async def use(url: str) -> None:
    """List the tools of a server, and call each with what its schema wants."""
    session = McpSession("suite", McpSettings(url=url, allow=("*",), timeout=15.0))
    await session.open()
    try:
        for tool in session.definitions:
            wanted = tool["inputSchema"].get("properties", {})
            result = await session.call(tool["name"], dict.fromkeys(wanted, 2))
            print(tool["name"], result.text)
    finally:
        await session.close()


if __name__ == "__main__":
    asyncio.run(use(sys.argv[-1]))
