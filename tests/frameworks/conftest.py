"""A real model behind a real server, for the frameworks that are installed: `make test-frameworks`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_process import Running, running_server

from headrace.engine.load import load_model
from headrace.engine.options import EngineOptions


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server of the shipped model, whose grammars hold it to whatever a framework asks for."""
    model = load_model(None, EngineOptions(max_sequences=4, token_budget=128))
    with running_server(model) as running:
        yield running
    model.close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
