"""Servers for the tests of the HTTP surface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake import FakeModel
from in_process import Running, running_server


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Start servers with settings; they end with the test."""
    contexts = []

    def start(model: Any = None, **flags: Any) -> Running:
        context = running_server(model or FakeModel(), **flags)
        contexts.append(context)
        return context.__enter__()

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture
def server(serve: Callable[..., Running]) -> Iterator[Running]:
    """A server of the fake model."""
    model = FakeModel()
    yield serve(model)
    model.engine.go.set()
