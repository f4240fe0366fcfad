"""Gateways over real child processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs headrace[tools]")

from headrace.config.mcp import read_mcp
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.storage.keys import KeyLimits
from headrace.tools.mcp.gateway import McpGateway

HERE = Path(__file__).parent
GatewayMaker = Callable[..., McpGateway]


def raw(behavior: str, *words: str, **more: Any) -> dict[str, Any]:
    """The settings of a server that behaves so."""
    command = [sys.executable, str(HERE / "raw_server.py"), behavior, *words]
    return {"command": command, "allow": "*", "timeout": 20} | more


def call_of(key: str = "") -> CallContext:
    return CallContext(request_id="test", account=Account(key, KeyLimits()))


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
