"""Gateways over real child processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs headrace[tools]")

from tool_servers import GatewayMaker

from headrace.config.mcp import read_mcp
from headrace.tools.mcp.gateway import McpGateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayMaker]:
    """Makes gateways of servers, which are approved as they are unless told otherwise."""
    made: list[McpGateway] = []

    def make(*, approve: bool = True, **servers: Any) -> McpGateway:
        found = McpGateway(read_mcp(servers), tmp_path / "headrace.lock")
        made.append(found)
        if approve:
            for name in servers:
                found.approve(name, found.difference(name)[0])
        return found

    yield make
    for one in made:
        one.close()
