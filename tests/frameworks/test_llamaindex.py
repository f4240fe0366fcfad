"""LlamaIndex's OpenAILike."""

from __future__ import annotations

import pytest
from in_process import Running

openai_like = pytest.importorskip("llama_index.llms.openai_like", reason="make test-frameworks installs it")
llms = pytest.importorskip("llama_index.core.llms", reason="make test-frameworks installs it")


def test_chat_complete_and_stream(server: Running) -> None:
    model = openai_like.OpenAILike(
        model=server.model.name,
        api_base=server.url + "/v1",
        api_key="none",
        is_chat_model=True,
        context_window=server.model.context_length,
        max_tokens=30,
        max_retries=0,
        temperature=0,
    )
    messages = [llms.ChatMessage(role="user", content="Tell me of the sea.")]
    whole = model.chat(messages).message.content
    assert whole
    assert [part.message.content for part in model.stream_chat(messages)][-1] == whole
    assert model.complete("Tell me of the sea.").text == whole
