"""The servers of tools that the settings name, with what keeps their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.extras import extra_module
from headrace.config.mcp import read_mcp
from headrace.config.settings import Settings
from headrace.config.sources import lock_file

if TYPE_CHECKING:
    from headrace.tools.mcp.gateway import McpGateway

LIBRARIES = ("mcp", "jsonschema_rs")


def gateway_of(settings: Settings) -> McpGateway:
    """The gateway. UsageError for wrong settings, ExtraMissing without headrace[tools]."""
    servers = read_mcp(settings.mcp)
    module = extra_module("tools", "headrace.tools.mcp.gateway", *LIBRARIES)
    tokens = None
    if any(one.oauth is not None for one in servers.values()):
        vault = extra_module("tools", "headrace.providers.token_vault", "cryptography")
        tokens = vault.vault_of(settings)
    return module.McpGateway(servers, lock_file(settings), tokens=tokens)
