"""A server of this project as the target of another one: every surface through every dialect that it speaks.

The answers are those that the target gives when it is asked directly, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fake import FakeModel
from in_process import Running, running_server, shipped_model_server

# As Qwen's: tools in the prompt, calls as JSON between marks.
TEMPLATE = (
    "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    '{% if false %}<tool_call>\n{"name": x, "arguments": {}}\n</tool_call>{% endif %}'
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Bonn"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "plan", "description": "Plan.", "parameters": SCHEMA}}
DIALECTS = ("chat", "responses", "anthropic")
ASK: list[Any] = [{"role": "user", "content": "It was a cold evening."}]


@pytest.fixture(scope="module")
def target() -> Iterator[Running]:
    with shipped_model_server(TEMPLATE, max_num_seqs=4, max_batch_tokens=128) as running:
        yield running


@pytest.fixture(scope="module")
def server(target: Running) -> Iterator[Running]:
    """A server with the target's model by each dialect."""
    providers = {
        "chat": {"kind": "headrace", "base_url": target.url + "/v1"},
        "responses": {"dialect": "openai_responses", "base_url": target.url + "/v1", "kind": "openai"},
        "anthropic": {"dialect": "anthropic", "base_url": target.url + "/v1"},
    }
    remote = {name: {"provider": name, "model": "novelette"} for name in providers}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("ANTHROPIC_API_KEY", "none")
        model = FakeModel()
        with running_server(model, providers=providers, remote=remote) as running:
            yield running


def chat(server: Running, model: str, **more: Any) -> dict[str, Any]:
    body = {"model": model, "messages": ASK, "temperature": 0, "max_completion_tokens": 24, **more}
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(server: Running, model: str) -> tuple[str, Any]:
    """The text of a stream's chunks, and its usage."""
    chunks = list(
        server.openai().chat.completions.create(
            model=model,
            messages=ASK,
            temperature=0,
            max_completion_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    return text, chunks[-1].usage


@pytest.mark.parametrize("dialect", DIALECTS)
def test_text(server: Running, target: Running, dialect: str) -> None:
    direct, through = chat(target, "novelette"), chat(server, dialect)
    assert through["choices"][0]["message"]["content"] == direct["choices"][0]["message"]["content"]
    assert through["choices"][0]["finish_reason"] == direct["choices"][0]["finish_reason"] == "length"
    for name in ("prompt_tokens", "completion_tokens"):
        assert through["usage"][name] == direct["usage"][name]
    text, usage = streamed(server, dialect)
    assert text == direct["choices"][0]["message"]["content"]
    assert usage.completion_tokens == direct["usage"]["completion_tokens"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_structured_output(server: Running, target: Running, dialect: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True}}
    direct = chat(target, "novelette", response_format=form, max_completion_tokens=60)
    through = chat(server, dialect, response_format=form, max_completion_tokens=60)
    assert through["choices"][0]["message"]["content"] == direct["choices"][0]["message"]["content"]
    assert set(json.loads(through["choices"][0]["message"]["content"])) == {"city", "days"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tools(server: Running, target: Running, dialect: str) -> None:
    more: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    direct = chat(target, "novelette", **more, max_completion_tokens=60)["choices"][0]
    through = chat(server, dialect, **more, max_completion_tokens=60)["choices"][0]
    assert through["finish_reason"] == direct["finish_reason"] == "tool_calls"
    functions = [
        [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in one["message"]["tool_calls"]
        ]
        for one in (direct, through)
    ]
    assert functions[0] == functions[1]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("surface", ["responses", "anthropic", "ollama"])
def test_every_surface_through_every_dialect(
    server: Running, target: Running, surface: str, dialect: str
) -> None:
    said = [
        _say(one, surface, model, stream=stream)
        for one, model in ((target, "novelette"), (server, dialect))
        for stream in (False, True)
    ]
    assert len(set(said)) == 1 and said[0], said


def _say(server: Running, surface: str, model: str, *, stream: bool) -> str:
    text = ASK[0]["content"]
    if surface == "responses":
        client = server.openai()
        if not stream:
            return client.responses.create(
                model=model, input=text, temperature=0, max_output_tokens=24
            ).output_text
        with client.responses.stream(model=model, input=text, temperature=0, max_output_tokens=24) as events:
            return "".join(one.delta for one in events if one.type == "response.output_text.delta")
    if surface == "anthropic":
        asked: dict[str, Any] = {"model": model, "messages": ASK, "max_tokens": 24}
        asked["extra_body"] = {"temperature": 0}
        if not stream:
            return server.anthropic().messages.create(**asked).content[0].text
        with server.anthropic().messages.stream(**asked) as events:
            return "".join(events.text_stream)
    options = {"temperature": 0, "num_predict": 24}
    found = server.ollama().chat(model=model, messages=ASK, options=options, stream=stream)
    return "".join(line.message.content for line in found) if stream else found.message.content


def test_completions(server: Running, target: Running) -> None:
    body = {
        "prompt": ["It was", "The old house"],
        "temperature": 0,
        "max_tokens": 12,
        "logprobs": 2,
        "echo": False,
    }
    replies = [
        one.http().post("/v1/completions", json=body | {"model": model}).json()
        for one, model in ((target, "novelette"), (server, "chat"))
    ]
    assert [c["text"] for c in replies[0]["choices"]] == [c["text"] for c in replies[1]["choices"]]
    tokens = [[c["logprobs"]["tokens"] for c in reply["choices"]] for reply in replies]
    assert tokens[0] == tokens[1]
    assert replies[0]["usage"]["total_tokens"] == replies[1]["usage"]["total_tokens"]


def test_headraces_own_parameters_go_through(server: Running, target: Running) -> None:
    more: dict[str, Any] = {
        "temperature": 0.9,
        "seed": 7,
        "min_p": 0.05,
        "xtc_probability": 0.3,
        "dry_multiplier": 0.8,
        "n": 2,
        "guided_regex": "[a-z ]{5,40}",
    }
    direct, through = chat(target, "novelette", **more), chat(server, "chat", **more)
    texts = [[c["message"]["content"] for c in reply["choices"]] for reply in (direct, through)]
    assert texts[0] == texts[1] and len(texts[0]) == 2
    assert through["seed"] == 7 and not through.get("warnings")


def test_a_loop_is_found() -> None:
    """A server whose provider is itself."""
    model = FakeModel()
    model.engine.go.set()
    with running_server(model) as first:
        port = first.port
    providers = {"self": {"kind": "headrace", "base_url": f"http://127.0.0.1:{port}/v1"}}
    with running_server(
        model, providers=providers, remote={"far": {"provider": "self"}}, port=port
    ) as server:
        reply = server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK})
    assert reply.status_code in (502, 508) and "came back to this server" in reply.text, reply.text
