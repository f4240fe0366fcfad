"""litellm: an OpenAI-compatible base URL."""

from __future__ import annotations

import pytest
from in_process import Running

litellm = pytest.importorskip("litellm", reason="make test-frameworks installs it")
MESSAGES = [{"role": "user", "content": "Tell me of the sea."}]


def test_completion_and_stream(server: Running) -> None:
    asked = {
        "model": f"openai/{server.model.name}",
        "messages": MESSAGES,
        "api_base": server.url + "/v1",
        "api_key": "none",
        "max_tokens": 30,
        "temperature": 0,
        "num_retries": 0,
    }
    whole = litellm.completion(**asked).choices[0].message.content
    parts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    assert whole
    assert "".join(parts) == whole


def test_a_refusal_is_its_own_class(server: Running) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/nobody", messages=MESSAGES, api_base=server.url + "/v1", api_key="x")
