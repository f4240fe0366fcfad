"""Mistral's official client against the server: its API is OpenAI's chat at the same path."""

from __future__ import annotations

from typing import Any

import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import running_server

mistralai = pytest.importorskip("mistralai.client", reason="make test-frameworks installs it")

ASK = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def test_an_answer_a_stream_and_a_call() -> None:
    model = FakeModel(
        engine=FakeEngine(f"Look:{CALL}", ends=True), template=FakeTemplate("tools <tool_call>")
    )
    with running_server(model) as server:
        client = mistralai.Mistral(api_key="none", server_url=server.url)
        reply = client.chat.complete(
            model="fake/model", messages=ASK, tools=[TOOL], tool_choice="any", max_tokens=300
        )
        [choice] = reply.choices
        [call] = choice.message.tool_calls
        assert (choice.message.content, choice.finish_reason) == ("Look:", "tool_calls")
        assert (call.function.name, call.function.arguments) == ("weather", '{"town": "Köln"}')
        events = client.chat.stream(model="fake/model", messages=ASK, max_tokens=4)
        text = "".join(part.delta.content or "" for event in events for part in event.data.choices)
        assert text == "Look"
