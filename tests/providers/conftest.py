"""Tests of remote models need the extra `gateway`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fake import FakeModel
from fake_provider import Gateway, Reply, running_provider
from in_process import running_server

for library in ("aiohttp", "cryptography", "jsonschema_rs"):
    pytest.importorskip(library, reason=f"the extra gateway is not installed ({library})")


@pytest.fixture
def gateway() -> Iterator[Callable[..., Gateway]]:
    """A server with the remote model `far`, and its provider, which replies with what is given.

    `provider` and `model` are settings of theirs, `remote` further entries of [models].
    """
    with ExitStack() as stack:

        def start(
            *replies: Reply, provider: Any = None, model: Any = None, remote: Any = None, **flags: Any
        ) -> Gateway:
            fake = stack.enter_context(running_provider(*replies))
            table = {"dialect": "openai_chat", "base_url": fake.url, **(provider or {})}
            entries = {"far": {"provider": "work", "model": "far-1", **(model or {})}, **(remote or {})}
            providers = {"work": table, **flags.pop("providers", {})}
            local = FakeModel()
            local.engine.go.set()
            server = stack.enter_context(running_server(local, remote=entries, providers=providers, **flags))
            return server, fake

        yield start
