"""What each dialect sends and what it makes of its API's streams, as the API references have them."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from asking import ask, chat, parsed
from fake_provider import FakeProvider, delta, events, fail, running_provider, say, send, usage

from headrace.chat.messages import Image, Message, ToolCall
from headrace.chat.tool_formats.events import CallEnd, CallStart, Reasoning
from headrace.chat.tools import Tool, ToolUse
from headrace.grammar.constraint import schema_constraint
from headrace.inference.events import OutputDelta, OutputFinished, PromptFinished
from headrace.inference.requests import ReasoningSettings
from headrace.providers.answer import Answer
from headrace.providers.call_memory import CALLS, MAX_ENTRY_BYTES
from headrace.providers.dialects.anthropic import MessageReader
from headrace.providers.sse import SseEvent

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("weather", "Tells it.", SCHEMA)
USE = ToolUse((WEATHER,), (WEATHER,))
PNG = "data:image/png;base64,aGk="


def stream(*bodies: dict[str, Any]) -> bytes:
    """Events with their names, as Anthropic and the Responses API send them."""
    return "".join(f"event: {body['type']}\ndata: {json.dumps(body)}\n\n" for body in bodies).encode()


def ends(found: list[Any]) -> tuple[OutputFinished, PromptFinished]:
    [ended] = [event for event in found if isinstance(event, OutputFinished)]
    [finished] = [event for event in found if isinstance(event, PromptFinished)]
    return ended, finished


def anthropic_stream(call_id: str = "toolu_1", reason: str = "tool_use") -> bytes:
    def block(index: int, kind: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        more = [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        start = {"type": "content_block_start", "index": index, "content_block": kind}
        return [start, *more, {"type": "content_block_stop", "index": index}]

    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 10},
        "output_tokens": 1,
    }
    return stream(
        {"type": "message_start", "message": {"id": "m", "model": "claude", "usage": usage}},
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm"},
            {"type": "signature_delta", "signature": "SIGNED"},
        ),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Look:"}),
        *block(
            2,
            {"type": "tool_use", "id": call_id, "name": "weather", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"city":'},
            {"type": "input_json_delta", "partial_json": ' "Rome"}'},
        ),
        *block(3, {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Bonn"}}),
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 40}},
        {"type": "message_stop"},
    )


def test_anthropic() -> None:
    conversation = (
        Message("system", "Be brief."),
        Message("user", "what is this?", images=(Image(PNG), Image("https://x.example/i.png", at=13))),
    )
    with running_provider(send(anthropic_stream()), send(anthropic_stream())) as provider:
        settings = ReasoningSettings(enabled=True, max_tokens=1024)
        found, call = ask(
            provider,
            chat(*conversation, tools=USE, reasoning=settings, sampling={"stop": ("X",), "max_tokens": 2000}),
            dialect="anthropic",
        )
        output, (ended, finished) = parsed(found), ends(found)
        assert (output.content, output.reasoning) == ("Look:", "Hm")
        assert [(c.id, c.arguments) for c in output.calls] == [
            ("toolu_1", '{"city": "Rome"}'),
            ("toolu_2", '{"city":"Bonn"}'),
        ]
        assert ended.reason == "tool_calls" and not call.warnings
        usage = finished.usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (140, 100, 40)
        first = provider.exchanges[0]
        assert first.path == "/v1/messages" and first.headers["x-api-key"] == "secret-key"
        assert first.headers["anthropic-version"] and "authorization" not in first.headers
        body = first.body
        assert body["system"] == "Be brief." and body["thinking"] == {
            "type": "enabled",
            "budget_tokens": 1024,
        }
        assert body["stop_sequences"] == ["X"] and body["max_tokens"] == 2000
        assert body["tools"][0]["input_schema"] == SCHEMA
        [turn] = body["messages"]
        assert [part["type"] for part in turn["content"]] == ["image", "text", "image"]
        assert turn["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "aGk="}
        # The reasoning goes back with its signature, also from surfaces that have no place for it.
        answered = (
            *conversation,
            Message("assistant", "Look:", tool_calls=output.calls),
            Message("tool", "sunny", tool_call_id="toolu_1"),
            Message("tool", "rain", tool_call_id="toolu_2"),
        )
        ask(provider, chat(*answered, tools=USE, reasoning=settings), dialect="anthropic")
        turns = provider.exchanges[1].body["messages"]
        assert turns[1]["content"][0] == {"type": "thinking", "thinking": "Hm", "signature": "SIGNED"}
        assert [part["tool_use_id"] for part in turns[2]["content"]] == ["toolu_1", "toolu_2"]


def test_anthropic_without_what_it_signed() -> None:
    with running_provider(send(anthropic_stream())) as provider:
        unknown = ToolCall("call.of/another", "weather", "{}")
        _, call = ask(
            provider,
            chat(
                Message("user", "x"),
                Message("assistant", None, tool_calls=(unknown,)),
                Message("tool", "sunny", tool_call_id=unknown.id),
                tools=USE,
                reasoning=ReasoningSettings(enabled=True),
            ),
            dialect="anthropic",
        )
        body = provider.exchanges[0].body
        assert "thinking" not in body and {one.param for one in call.warnings} == {"thinking", "max_tokens"}
        assert body["messages"][1]["content"][0]["id"] == "call_of_another"
        assert body["messages"][2]["content"][0]["tool_use_id"] == "call_of_another"


@pytest.mark.parametrize(("size", "is_kept"), [(10_000, True), (4 * MAX_ENTRY_BYTES, False)])
def test_reasoning_that_is_too_large_to_be_kept_is_not_collected(size: int, is_kept: bool) -> None:
    """It was one text that grew by each piece, up to all that a reply may have: quadratic in time."""
    answer = Answer(1, USE, lambda param, message: None)
    reader = MessageReader(answer, lambda param, message: None, "work")
    thought, signature = list[str](), ""

    def read(kind: str, **fields: Any) -> None:
        nonlocal signature
        reader.read(SseEvent("", json.dumps({"type": kind, "index": 0, **fields}).encode()))
        for part in (part for one in answer.take() for part in one.parts):
            if isinstance(part, Reasoning):
                thought.append(str(len(part.text)))
                signature += part.signature

    tracemalloc.start()
    read("content_block_start", content_block={"type": "thinking"})
    for _ in range(size // 1_000):
        read("content_block_delta", delta={"type": "thinking_delta", "thinking": "x" * 1_000})
    read("content_block_delta", delta={"type": "signature_delta", "signature": "SIGNED"})
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * MAX_ENTRY_BYTES
    read("content_block_stop")
    call = {"type": "tool_use", "id": f"toolu_{size}", "name": "weather", "input": {"city": "Rome"}}
    read("content_block_start", index=1, content_block=call)
    read("content_block_stop", index=1)
    read("message_delta", delta={"stop_reason": "tool_use"})
    assert sum(map(int, thought)) == size // 1_000 * 1_000 and signature == "SIGNED"
    kept = CALLS.find("work", f"toolu_{size}")
    assert (kept is not None) is is_kept
    if kept is not None:
        block = {"type": "thinking", "thinking": "x" * size, "signature": "SIGNED"}
        assert json.loads(kept) == [block]


def test_an_anthropic_call_that_is_cut_stays_partial() -> None:
    whole = anthropic_stream(reason="max_tokens").decode()
    cut = whole.replace('"Rome\\\\"}', "").replace(' \\"Rome\\"}', "")
    assert cut != whole
    before, _, rest = cut.partition(
        'event: content_block_start\ndata: {"type": "content_block_start", "index": 3'
    )
    data = before + rest[rest.index("event: message_delta") :]
    with running_provider(send(data.encode())) as provider:
        found, _ = ask(provider, chat(tools=USE), dialect="anthropic")
    assert ends(found)[0].reason == "length"
    parts = [part for event in found if isinstance(event, OutputDelta) for part in event.parts]
    assert any(isinstance(part, CallStart) for part in parts)
    assert not any(isinstance(part, CallEnd) for part in parts)


def google_stream() -> bytes:
    def parts(*found: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"candidates": [{"index": 0, "content": {"role": "model", "parts": list(found)}, **more}]}

    usage = {
        "promptTokenCount": 50,
        "cachedContentTokenCount": 20,
        "candidatesTokenCount": 8,
        "thoughtsTokenCount": 12,
        "totalTokenCount": 70,
    }
    call = {"functionCall": {"name": "weather", "args": {"city": "Rome"}}, "thoughtSignature": "U0lH"}
    return events(
        parts({"text": "Hm", "thought": True}),
        parts({"text": "Look:"}),
        parts(call, {"functionCall": {"name": "weather", "args": {"city": "Bonn"}}}),
        {**parts(finishReason="STOP"), "usageMetadata": usage, "modelVersion": "gemini-x"},
        done=False,
    )


def test_google() -> None:
    with running_provider(send(google_stream()), send(google_stream())) as provider:
        request = chat(
            Message("system", "Be brief."),
            Message("user", "hi", images=(Image(PNG),)),
            tools=ToolUse((WEATHER,), (WEATHER,), "required"),
            reasoning=ReasoningSettings(effort="low"),
            sampling={"temperature": 0.5, "max_tokens": 9, "stop": ("X",), "seed": 3},
        )
        found, call = ask(provider, request, dialect="google")
        output, (ended, finished) = parsed(found), ends(found)
        assert (output.content, output.reasoning) == ("Look:", "Hm") and ended.reason == "tool_calls"
        assert [json.loads(c.arguments)["city"] for c in output.calls] == ["Rome", "Bonn"]
        assert len({c.id for c in output.calls}) == 2 and not call.warnings
        usage = finished.usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (50, 20, 20)
        assert ended.reasoning_tokens == 12
        first = provider.exchanges[0]
        assert first.path == "/v1/models/far-1:streamGenerateContent?alt=sse"
        assert first.headers["x-goog-api-key"] == "secret-key"
        config = first.body["generationConfig"]
        assert config["maxOutputTokens"] == 9 and config["stopSequences"] == ["X"] and config["seed"] == 3
        assert config["thinkingConfig"] == {"thinkingLevel": "low", "includeThoughts": True}
        assert first.body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
        assert first.body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
        assert first.body["contents"][0]["parts"][0]["inlineData"]["mimeType"] == "image/png"
        results = [Message("tool", "sunny", tool_call_id=c.id) for c in output.calls]
        ask(
            provider,
            chat(
                Message("user", "hi"),
                Message("assistant", None, tool_calls=output.calls),
                *results,
                tools=USE,
            ),
            dialect="google",
        )
        turns = provider.exchanges[1].body["contents"]
        assert turns[1]["parts"][0]["thoughtSignature"] == "U0lH"
        answers = [part["functionResponse"] for part in turns[2]["parts"]]
        assert answers == [{"name": "weather", "response": {"result": "sunny"}}] * 2


def test_google_says_why_it_does_not_answer() -> None:
    blocked = events({"promptFeedback": {"blockReason": "SAFETY"}}, done=False)
    with running_provider(send(blocked)) as provider, pytest.raises(Exception, match="SAFETY") as caught:
        ask(provider, chat(), dialect="google")
    assert getattr(caught.value, "code", "") == "content_filter"
    bad_key = [{"error": {"code": 400, "message": "API key not valid", "status": "INVALID_ARGUMENT"}}]
    with (
        running_provider(fail(400, bad_key)) as provider,
        pytest.raises(Exception, match="API key") as caught,
    ):
        ask(provider, chat(), dialect="google")
    assert getattr(caught.value, "status", 0) == 502


def responses_stream() -> bytes:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "SEALED"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_r1", "name": "weather", "arguments": ""}
    usage = {
        "input_tokens": 50,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 12},
    }
    return stream(
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": reasoning},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Hm"},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "id": "m"}},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Look:"},
        {"type": "response.output_item.done", "output_index": 1, "item": {"type": "message", "id": "m"}},
        {"type": "response.output_item.added", "output_index": 2, "item": call},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"city":"Rome"}'},
        {"type": "response.output_item.done", "output_index": 2, "item": call},
        {"type": "response.completed", "response": {"status": "completed", "usage": usage}},
    )


def test_openai_responses() -> None:
    with running_provider(send(responses_stream()), send(responses_stream())) as provider:
        request = chat(
            Message("developer", "Be brief."),
            Message("user", "hi", images=(Image(PNG, detail="low"),)),
            tools=USE,
            constraint=None,
            reasoning=ReasoningSettings(effort="low"),
            sampling={"max_tokens": 99},
        )
        found, call = ask(provider, request, dialect="openai_responses")
        output, (ended, finished) = parsed(found), ends(found)
        assert (output.content, output.reasoning) == ("Look:", "Hm") and ended.reason == "tool_calls"
        assert [c.arguments for c in output.calls] == ['{"city":"Rome"}'] and not call.warnings
        assert finished.usage.completion_tokens == 30 and ended.reasoning_tokens == 12
        body = provider.exchanges[0].body
        assert body["store"] is False and body["max_output_tokens"] == 99
        assert body["reasoning"] == {"effort": "low", "summary": "auto"}
        assert body["tools"][0]["strict"] is False and "reasoning.encrypted_content" in body["include"]
        assert [part["type"] for part in body["input"][1]["content"]] == ["input_image", "input_text"]
        answered = (
            Message("user", "hi"),
            Message("assistant", "Look:", tool_calls=output.calls),
            Message("tool", "sunny", tool_call_id=output.calls[0].id),
        )
        ask(provider, chat(*answered, tools=USE), dialect="openai_responses")
        items = provider.exchanges[1].body["input"]
        assert [one["type"] for one in items] == [
            *("message", "reasoning", "message", "function_call", "function_call_output")
        ]
        assert items[1]["encrypted_content"] == "SEALED"


@pytest.mark.parametrize("other", ["anthropic", "openai_responses", "google"])
@pytest.mark.parametrize("first", ["anthropic", "openai_responses", "google"])
def test_reasoning_of_one_provider_does_not_go_to_another(first: str, other: str) -> None:
    """A route may answer the next turn elsewhere, which got what it cannot read, or an error of this side."""
    streams = {
        "anthropic": anthropic_stream("toolu_other"),
        "openai_responses": responses_stream(),
        "google": google_stream(),
    }
    thinking = ReasoningSettings(enabled=True, max_tokens=2_000 if other == "anthropic" else None)
    with running_provider(send(streams[first]), send(streams[other])) as provider:
        found, _ = ask(provider, chat(tools=USE), dialect=first)
        calls = parsed(found).calls
        results = [Message("tool", "sunny", tool_call_id=one.id) for one in calls]
        turns = (Message("user", "hi"), Message("assistant", None, tool_calls=calls), *results)
        there = {"base_url": provider.url, "dialect": other, "name": f"{other}-after-{first}"}
        ask(provider, chat(*turns, tools=USE, reasoning=thinking), **there)
        raw = provider.exchanges[1].raw
        assert not any(mark in raw for mark in (b"SIGNED", b"SEALED", b"U0lH"))


def asked(provider: FakeProvider, kind: str, **more: Any) -> dict[str, Any]:
    """The body that a provider of a kind gets."""
    ask(provider, chat(**more), dialect=None, kind=kind)
    return provider.exchanges[-1].body


def test_quirks_of_providers() -> None:
    schema = schema_constraint(SCHEMA)
    with running_provider() as provider:
        body = asked(provider, "openai", sampling={"max_tokens": 5}, constraint=schema)
        assert body["max_completion_tokens"] == 5 and body["response_format"]["json_schema"]["strict"] is True
        body = asked(
            provider, "mistral", sampling={"seed": 4}, tools=ToolUse((WEATHER,), (WEATHER,), "required")
        )
        assert body["random_seed"] == 4 and body["tool_choice"] == "any" and "stream_options" not in body
        body = asked(provider, "openrouter", reasoning=ReasoningSettings(max_tokens=100))
        assert body["reasoning"] == {"max_tokens": 100} and body["provider"]["require_parameters"] is True
        body = asked(provider, "deepseek", reasoning=ReasoningSettings(enabled=False))
        assert body["thinking"] == {"type": "disabled"}
        body = asked(
            provider, "vllm", sampling={"min_p": 0.1, "top_k": 5}, reasoning=ReasoningSettings(enabled=False)
        )
        assert (body["min_p"], body["top_k"]) == (0.1, 5)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        body = asked(provider, "llama_cpp", sampling={"repetition_penalty": 1.1, "dry_multiplier": 0.5})
        assert body["repeat_penalty"] == 1.1 and body["dry_multiplier"] == 0.5
        body = asked(provider, "groq", reasoning=ReasoningSettings(effort="low"))
        assert body["reasoning_format"] == "parsed" and body["reasoning_effort"] == "low"
        ask(provider, chat(), dialect=None, kind="azure")
        assert provider.exchanges[-1].headers["api-key"] == "secret-key"
        assert "authorization" not in provider.exchanges[-1].headers


def test_ids_of_calls_are_short_where_a_provider_wants_them_so() -> None:
    call = ToolCall("call_0123456789abcdef", "weather", "{}")
    with running_provider() as provider:
        ask(
            provider,
            chat(
                Message("user", "x"),
                Message("assistant", None, tool_calls=(call,)),
                Message("tool", "sunny", tool_call_id=call.id, name="weather"),
                tools=USE,
            ),
            dialect=None,
            kind="mistral",
        )
        _, made, result = provider.exchanges[0].body["messages"]
        assert made["tool_calls"][0]["id"] == result["tool_call_id"] and len(result["tool_call_id"]) == 9
        assert result["name"] == "weather"


def test_calls_that_all_have_the_number_0() -> None:
    """Some servers number every call of an answer 0 and tell them apart by their ids only."""

    def made(call_id: str, city: str) -> dict[str, Any]:
        function = {"name": "weather", "arguments": json.dumps({"city": city})}
        return delta(tool_calls=[{"index": 0, "id": call_id, "function": function}])

    reply = say(made("a", "Rome"), made("b", "Bonn"), delta(finish="stop"), usage())
    with running_provider(reply) as provider:
        found, _ = ask(provider, chat(tools=USE))
    assert [json.loads(c.arguments)["city"] for c in parsed(found).calls] == ["Rome", "Bonn"]
    assert ends(found)[0].reason == "tool_calls"
