"""Anthropic's surface over the real engine and the model that ships."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from in_process import Running, running_server, shipped_model_server
from msgspec.structs import replace

from headrace.chat.templates.chat_template import ChatTemplate

CONTEXT_LENGTH = 256
STORY: Any = [
    {"role": "user", "content": "Tell me of the old house at the end of the lane, and who lived in it."}
]
TEMPLATE = """{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ m.content }}
{% endfor %}{% if thinks %}<think>
{% endif %}{# </think> #}"""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with shipped_model_server(
        TEMPLATE, max_num_seqs=8, max_batch_tokens=64, max_model_len=CONTEXT_LENGTH
    ) as running:
        yield running


def body(server: Running, **more: Any) -> dict[str, Any]:
    greedy = {"temperature": 0}
    return {
        "model": server.model.name, "messages": STORY, "max_tokens": 40, "extra_body": greedy
    } | more  # fmt: skip


def test_streamed_and_whole_are_the_same(server: Running) -> None:
    client = server.anthropic()
    whole = client.messages.create(**body(server))
    with client.messages.stream(**body(server)) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].text and whole.content[0].text == streamed.content[0].text
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 40)
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("max_tokens", 40)


def test_tokens_that_were_cached_are_counted_apart(server: Running) -> None:
    client = server.anthropic()
    more = body(server, messages=[{"role": "user", "content": "word " * 60}], max_tokens=2)
    prompt = {key: more[key] for key in ("model", "messages")}
    count = client.messages.count_tokens(**prompt).input_tokens
    for expected in (0, count // 16 * 16):
        usage = client.messages.create(**more).usage
        assert usage.cache_read_input_tokens in (expected, max(0, expected - 16))
        assert usage.input_tokens + usage.cache_read_input_tokens == count
    assert usage.cache_read_input_tokens > 0
    with client.messages.stream(**more) as stream:
        assert stream.get_final_message().usage.cache_read_input_tokens == usage.cache_read_input_tokens


def test_a_stop_sequence_is_named(server: Running) -> None:
    client = server.anthropic()
    text = client.messages.create(**body(server)).content[0].text
    stop = text.split()[4]
    reply = client.messages.create(**body(server, stop_sequences=["\x00never", stop]))
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)
    assert reply.content[0].text == text[: text.index(stop)]
    with client.messages.stream(**body(server, stop_sequences=[stop])) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)


def test_an_answer_may_fill_the_context_and_says_so(server: Running) -> None:
    client = server.anthropic()
    whole = client.messages.create(**body(server, max_tokens=100_000, timeout=60.0))
    count = client.messages.count_tokens(model=server.model.name, messages=STORY).input_tokens
    assert whole.stop_reason == "model_context_window_exceeded"
    assert whole.usage.output_tokens == CONTEXT_LENGTH - count
    with client.messages.stream(**body(server, max_tokens=100_000)) as stream:
        assert stream.get_final_message().stop_reason == "model_context_window_exceeded"
    with pytest.raises(anthropic.BadRequestError, match="limit is") as caught:
        client.messages.create(**body(server, messages=[{"role": "user", "content": "word " * 300}]))
    assert caught.value.error_code == "context_length_exceeded"


def test_a_schema_holds(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["glad", "sad"]}, "old": {"type": "boolean"}},
        "required": ["mood", "old"],
        "additionalProperties": False,
    }
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    reply = server.anthropic().messages.create(**body(server, output_config=config))
    value = json.loads(reply.content[0].text)
    assert value["mood"] in ("glad", "sad") and isinstance(value["old"], bool)


UNKEEPABLE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def test_a_schema_that_cannot_be_kept_is_refused_by_keyword(server: Running) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": UNKEEPABLE}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config.*'uniqueItems'"):
        server.anthropic().messages.create(**body(server, output_config=config))


def test_a_call_that_is_demanded_is_made(server: Running) -> None:
    tool: Any = {
        "name": "light",
        "input_schema": {
            "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
            "additionalProperties": False,
        },
    }  # fmt: skip
    more = body(server, tools=[tool], tool_choice={"type": "tool", "name": "light"}, max_tokens=120)
    reply = server.anthropic().messages.create(**more)
    [call] = reply.content
    assert (reply.stop_reason, call.name) == ("tool_use", "light")
    assert isinstance(call.input["on"], bool)
    with server.anthropic().messages.stream(**more) as stream:
        assert stream.get_final_message().content[0].input == call.input


def test_a_budget_of_thinking_is_exact(server: Running) -> None:
    thinks = replace(
        server.model, template=ChatTemplate(TEMPLATE.replace("{% if thinks %}", "{% if true %}"))
    )
    with running_server(thinks) as running:
        client = running.anthropic()
        more = body(running, max_tokens=60, thinking={"type": "enabled", "budget_tokens": 12})
        reply = client.messages.create(**more)
        thinking, text = reply.content
        marks = len(running.model.tokenizer.encode("</think>", add_special=False))
        assert reply.usage.output_tokens_details.thinking_tokens == 12 + marks
        assert thinking.thinking and text.text
        off = client.messages.create(**body(running, thinking={"type": "disabled"}))
        assert [block.type for block in off.content] == ["text"]
