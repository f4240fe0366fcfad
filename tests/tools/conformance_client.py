"""A client for the MCP conformance suite: this package's session with a server, with the URL of a server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httpx

from headrace.config.mcp import McpSettings
from headrace.tools.mcp.client import McpSession
from headrace.tools.mcp.oauth import Login
from headrace.tools.tool import ToolUnavailable

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


def oauth(url: str) -> dict[str, object] | None:
    """The settings for a scenario."""
    if not SCENARIO.startswith("auth/"):
        return None
    given: dict[str, object] = {}
    if "client_id" in CONTEXT:
        given["client_id"] = CONTEXT["client_id"]
    if "client_secret" in CONTEXT:
        os.environ["CLIENT_SECRET"] = CONTEXT["client_secret"]
        given["client_secret"] = "env:CLIENT_SECRET"
    if "private_key_pem" in CONTEXT:
        os.environ["PRIVATE_KEY"] = CONTEXT["private_key_pem"]
        given |= {"private_key": "env:PRIVATE_KEY", "algorithm": CONTEXT["signing_algorithm"]}
    if "client-credentials" in SCENARIO:
        found = httpx.get(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")).json()
        given |= {"grant": "client_credentials", "issuer": found["authorization_servers"][0]}
    if SCENARIO == "auth/basic-cimd":
        given["client_metadata_url"] = "https://conformance-test.local/client-metadata.json"
    return given


async def browse(url: str) -> None:
    """What a person's browser does: the suite's login redirects at once."""
    async with httpx.AsyncClient() as client:
        reply = await client.get(url)
        await client.get(reply.headers["location"])


async def use(url: str) -> None:
    """List the tools of a server, and call each with what its schema wants."""
    login = Login(browse)
    await login.open(0)
    settings = McpSettings(url=url, allow=("*",), timeout=15.0, oauth=oauth(url))
    session = McpSession("suite", settings, login=login)
    try:
        await session.open()
        for tool in session.definitions:
            wanted = tool["inputSchema"].get("properties", {})
            result = await session.call(tool["name"], dict.fromkeys(wanted, 2))
            print(tool["name"], result.text)
    finally:
        await session.close()
        await login.close()


if __name__ == "__main__":
    try:
        asyncio.run(use(sys.argv[-1]))
    except ToolUnavailable as error:
        sys.exit(error.message)
