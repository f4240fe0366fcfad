"""Settings of servers that behave so or so, and calls of keys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.storage.keys import KeyLimits

HERE = Path(__file__).parent
GatewayMaker = Callable[..., Any]


def raw(behavior: str, *words: str, **more: Any) -> dict[str, Any]:
    """The settings of a server that behaves so."""
    command = [sys.executable, str(HERE / "raw_server.py"), behavior, *words]
    return {"command": command, "allow": "*", "timeout": 20} | more


def call_of(key: str = "") -> CallContext:
    return CallContext(request_id="test", account=Account(key, KeyLimits()))
