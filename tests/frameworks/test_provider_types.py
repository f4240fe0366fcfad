"""Official clients against this server, whose remote models are fake providers made of the SDKs' own types.

What the dialects send is validated by the SDKs' types of requests, where they can.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake import FakeModel
from fake_provider import HELLO, FakeProvider, running_provider, say, send, usage
from in_process import Running, running_server

for library in ("aiohttp", "cryptography", "jsonschema_rs"):
    pytest.importorskip(library, reason=f"the extra gateway is not installed ({library})")
pydantic = pytest.importorskip("pydantic", reason="make test-frameworks installs it")
openai = pytest.importorskip("openai", reason="make test-frameworks installs it")
anthropic = pytest.importorskip("anthropic", reason="make test-frameworks installs it")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
ASK: list[Any] = [{"role": "user", "content": "hi"}]
ARGUMENTS = '{"city":"Rome"}'


def sse(bodies: Sequence[Any], *, named: bool = False, done: bool = False) -> bytes:
    """A stream of a SDK's objects."""
    text = ""
    for body in bodies:
        name = f"event: {body.type}\n" if named else ""
        text += f"{name}data: {body.model_dump_json(by_alias=True, exclude_none=True)}\n\n"
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def openai_stream() -> bytes:
    from openai.types.chat import ChatCompletionChunk as Chunk

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Any:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return Chunk.model_validate({**head, "choices": [choice]})

    head: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    return sse(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Look:"}),
            chunk({"tool_calls": [call]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS}}]}),
            chunk({}, "tool_calls"),
            Chunk.model_validate({**head, "choices": [], "usage": usage}),
        ],
        done=True,
    )


def anthropic_stream() -> bytes:
    from anthropic import types

    def event(kind: Any, **fields: Any) -> Any:
        return kind.model_validate(fields)

    usage = {"input_tokens": 15, "cache_read_input_tokens": 5, "output_tokens": 1}
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    start, more = types.RawContentBlockStartEvent, types.RawContentBlockDeltaEvent
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    return sse(
        [
            event(types.RawMessageStartEvent, type="message_start", message=message),
            event(start, type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event(more, type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Look:"}),
            event(types.RawContentBlockStopEvent, type="content_block_stop", index=0),
            event(start, type="content_block_start", index=1, content_block=call),
            event(
                more,
                type="content_block_delta",
                index=1,
                delta={"type": "input_json_delta", "partial_json": ARGUMENTS},
            ),
            event(types.RawContentBlockStopEvent, type="content_block_stop", index=1),
            event(
                types.RawMessageDeltaEvent,
                type="message_delta",
                delta={"stop_reason": "tool_use", "stop_sequence": None},
                usage={"output_tokens": 9},
            ),
            event(types.RawMessageStopEvent, type="message_stop"),
        ],
        named=True,
    )


def google_stream() -> bytes:
    types = pytest.importorskip("google.genai.types", reason="make test-frameworks installs google-genai")
    parts = [types.Part(text="Look:"), types.Part.from_function_call(name="weather", args={"city": "Rome"})]
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=20, cached_content_token_count=5, candidates_token_count=9, total_token_count=29
    )
    replies = [
        types.GenerateContentResponse(
            candidates=[types.Candidate(index=0, content=types.Content(role="model", parts=[part]))]
        )
        for part in parts
    ]
    end = types.GenerateContentResponse(
        candidates=[types.Candidate(index=0, finish_reason="STOP")], usage_metadata=usage
    )
    return sse([*replies, end])


def mistral_stream() -> bytes:
    models = pytest.importorskip("mistralai.client.models", reason="make test-frameworks installs mistralai")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> Any:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return models.CompletionChunk.model_validate({"id": "c", "model": "m", "choices": [choice], **more})

    call = {"index": 0, "id": "abcdefghi", "function": {"name": "weather", "arguments": ARGUMENTS}}
    usage = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}
    bodies = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": [{"type": "text", "text": "Look:"}]}),
        chunk({"content": "", "tool_calls": [call]}, "tool_calls", usage=usage),
    ]
    return sse(bodies, done=True)


def responses_stream() -> bytes:
    from openai.types import responses as types

    number = iter(range(100))

    def event(kind: Any, **fields: Any) -> Any:
        return kind.model_validate({"sequence_number": next(number), **fields})

    message = {"type": "message", "id": "m1", "role": "assistant", "status": "in_progress", "content": []}
    call = {"type": "function_call", "id": "f1", "call_id": "call_1", "name": "weather", "arguments": ""}
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 29,
    }
    response = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [],
        "tools": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "status": "completed",
        "usage": usage,
    }
    added, done = types.ResponseOutputItemAddedEvent, types.ResponseOutputItemDoneEvent
    return sse(
        [
            event(added, type="response.output_item.added", output_index=0, item=message),
            event(
                types.ResponseTextDeltaEvent,
                type="response.output_text.delta",
                output_index=0,
                content_index=0,
                item_id="m1",
                delta="Look:",
                logprobs=[],
            ),
            event(done, type="response.output_item.done", output_index=0, item=message),
            event(added, type="response.output_item.added", output_index=1, item=call),
            event(
                types.ResponseFunctionCallArgumentsDeltaEvent,
                type="response.function_call_arguments.delta",
                output_index=1,
                item_id="f1",
                delta=ARGUMENTS,
            ),
            event(done, type="response.output_item.done", output_index=1, item=call),
            event(types.ResponseCompletedEvent, type="response.completed", response=response),
        ],
        named=True,
    )


def check_openai(body: dict[str, Any]) -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    pydantic.TypeAdapter(CompletionCreateParamsStreaming).validate_python(body)


def check_anthropic(body: dict[str, Any]) -> None:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    pydantic.TypeAdapter(MessageCreateParamsStreaming).validate_python(body)


def check_google(body: dict[str, Any]) -> None:
    from google.genai import types

    for turn in body["contents"]:
        types.Content.model_validate(turn)
    for tool in body["tools"]:
        types.Tool.model_validate(tool)
    types.GenerateContentConfig.model_validate(body["generationConfig"])


def check_mistral(body: dict[str, Any]) -> None:
    from mistralai.client import models

    models.ChatCompletionStreamRequest.model_validate(body)
    assert not set(body) - set(models.ChatCompletionStreamRequest.model_fields)


def check_responses(body: dict[str, Any]) -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    pydantic.TypeAdapter(ResponseCreateParamsStreaming).validate_python(body)


PROVIDERS: dict[str, Any] = {
    "openai": (openai_stream, check_openai),
    "anthropic": (anthropic_stream, check_anthropic),
    "google": (google_stream, check_google),
    "mistral": (mistral_stream, check_mistral),
    "openai_responses": (responses_stream, check_responses),
}


@pytest.fixture(params=list(PROVIDERS))
def routed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Running, FakeProvider, str]]:
    """A server whose model `far` is a provider of that kind."""
    kind: str = request.param
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "MISTRAL"):
        monkeypatch.setenv(f"{name}_API_KEY", "secret")
    with running_provider(send(PROVIDERS[kind][0]())) as provider:
        providers = {"work": {"kind": kind, "base_url": provider.url}}
        remote = {"far": {"provider": "work", "model": "m"}}
        with running_server(FakeModel(), providers=providers, remote=remote) as server:
            yield server, provider, kind


def test_every_client_through_every_provider(routed: tuple[Running, FakeProvider, str]) -> None:
    server, provider, kind = routed
    said = [
        _openai_chat(server, stream=False),
        _openai_chat(server, stream=True),
        _openai_responses(server),
        _anthropic(server),
        _ollama(server),
    ]
    assert all(one == ("Look:", "weather", {"city": "Rome"}, 20, 9) for one in said), said
    assert len(provider.exchanges) == 5
    for exchange in provider.exchanges:
        PROVIDERS[kind][1](exchange.body)


Said = tuple[str, str, dict[str, Any], int, int]


def _openai_chat(server: Running, *, stream: bool) -> Said:
    client = server.openai()
    asked: dict[str, Any] = {"model": "far", "messages": ASK, "tools": [TOOL], "max_completion_tokens": 100}
    if stream:
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            for _ in events:
                pass
            reply: Any = events.get_final_completion()
    else:
        reply = client.chat.completions.create(**asked)
    [choice] = reply.choices
    [call] = choice.message.tool_calls
    usage = reply.usage
    arguments = json.loads(call.function.arguments)
    return choice.message.content, call.function.name, arguments, usage.prompt_tokens, usage.completion_tokens


def _openai_responses(server: Running) -> Said:
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
    with server.openai().responses.stream(
        model="far", input="hi", tools=[tool], max_output_tokens=100
    ) as events:
        for _ in events:
            pass
        reply: Any = events.get_final_response()
    [call] = [item for item in reply.output if item.type == "function_call"]
    usage = reply.usage
    return reply.output_text, call.name, json.loads(call.arguments), usage.input_tokens, usage.output_tokens


def _anthropic(server: Running) -> Said:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    with server.anthropic().messages.stream(
        model="far", max_tokens=100, messages=ASK, tools=[tool]
    ) as events:
        reply: Any = events.get_final_message()
    [text] = [block.text for block in reply.content if block.type == "text"]
    [call] = [block for block in reply.content if block.type == "tool_use"]
    usage = reply.usage
    read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return text, call.name, call.input, read, usage.output_tokens


def _ollama(server: Running) -> Said:
    lines: list[Any] = list(
        server.ollama().chat(
            model="far", messages=ASK, tools=[TOOL], options={"num_predict": 100}, stream=True
        )
    )
    text = "".join(line.message.content or "" for line in lines)
    [call] = [call for line in lines for call in line.message.tool_calls or ()]
    end = lines[-1]
    return text, call.function.name, dict(call.function.arguments), end.prompt_eval_count, end.eval_count


def test_mistrals_client_reads_this_servers_stream() -> None:
    """Its client speaks OpenAI's chat completions, so it can be pointed here."""
    mistral = pytest.importorskip("mistralai.client", reason="make test-frameworks installs mistralai")

    with running_provider(say(*HELLO, usage(5, 3))) as provider:
        providers = {"work": {"dialect": "openai_chat", "base_url": provider.url}}
        with running_server(FakeModel(), providers=providers, remote={"far": {"provider": "work"}}) as server:
            client = mistral.Mistral(api_key="none", server_url=server.url)
            events = client.chat.stream(model="far", messages=ASK)
            text = "".join(
                str(event.data.choices[0].delta.content or "") for event in events if event.data.choices
            )
    assert text == "Hello"
