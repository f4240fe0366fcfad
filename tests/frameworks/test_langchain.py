"""LangChain's ChatOpenAI."""

from __future__ import annotations

import pytest
from in_process import Running
from pydantic import BaseModel, Field

langchain_openai = pytest.importorskip("langchain_openai", reason="make test-frameworks installs it")


class Weather(BaseModel, extra="forbid"):
    """The weather at a place."""

    town: str = Field(pattern="^(Bern|Oslo)$")
    degrees: int = Field(ge=0, le=40)


def chat(server: Running, **options: object):
    return langchain_openai.ChatOpenAI(
        model=server.model.name,
        base_url=server.url + "/v1",
        api_key="none",
        max_tokens=200,
        max_retries=0,
        seed=1,
        **options,
    )


def test_chat_and_stream_say_the_same(server: Running) -> None:
    model = chat(server, temperature=0)
    whole = model.invoke("Tell me of the sea.")
    parts = list(model.stream("Tell me of the sea."))
    assert whole.content
    assert len(parts) > 5
    assert "".join(part.content for part in parts) == whole.content
    assert whole.usage_metadata["output_tokens"] > 5


def test_structured_output(server: Running) -> None:
    found = (
        chat(server, temperature=0)
        .with_structured_output(Weather, method="json_schema")
        .invoke("How is the weather?")
    )
    assert isinstance(found, Weather)


def test_a_tool_is_called(server: Running) -> None:
    model = chat(server, temperature=0).bind_tools(
        [Weather], tool_choice="Weather", parallel_tool_calls=False
    )
    [call] = model.invoke("How is the weather?").tool_calls
    assert call["name"] == "Weather"
    assert Weather(**call["args"])
