"""Temperatures above 2, where OpenAI's own server stops: every surface takes them up to 100."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import Running

ASK = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": ASK, "max_tokens": 3},
    "/completion": {"prompt": "a"},
    "/api/generate": {"prompt": "a", "stream": False},
}


def sent(server: Running, path: str, temperature: float) -> Any:
    given = {"temperature": temperature}
    more = {"options": given} if path.startswith("/api") else given
    return server.http().post(path, json={"model": "fake/model", **BODIES[path], **more})


@pytest.mark.parametrize("path", BODIES)
def test_high_temperatures_take_effect(server: Running, path: str) -> None:
    reply = sent(server, path, 2.5)
    assert reply.status_code == 200, reply.text
    assert server.model.engine.submitted[-1].params.temperature == 2.5
    assert "temperature" not in str(reply.json().get("warnings", ""))


@pytest.mark.parametrize("path", BODIES)
def test_higher_ones_are_refused_with_the_bounds(server: Running, path: str) -> None:
    reply = sent(server, path, 100.5)
    assert reply.status_code == 400
    assert "temperature is 100.5, it must be in [0.0, 100.0]" in reply.text
