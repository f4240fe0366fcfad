"""A ledger in PostgreSQL that is not there: nothing is sent without money set aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_provider import Gateway

from headrace.economy import grouped_work

pytest.importorskip("psycopg", reason="the extra postgres is not installed")


def test_nothing_is_sent_while_postgresql_is_down(
    gateway: Callable[..., Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server starts all the same; the reply says what to do."""
    monkeypatch.setattr(grouped_work, "PATIENCE_S", 0.1)
    server, provider = gateway(ledger=f"postgresql://me@/x?host={tmp_path}")
    ask = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
    reply = server.http().post("/v1/chat/completions", json=ask)
    assert reply.status_code == 503, reply.text
    assert "PostgreSQL is busy (it does not answer): try again" in reply.text
    assert not provider.exchanges
