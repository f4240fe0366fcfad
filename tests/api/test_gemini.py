"""Google's Gemini API over plain HTTP; tests/frameworks/test_google.py has its official client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running, server_of

from headrace.api.google.schemas import json_schema
from headrace.errors import BudgetExceeded, InvalidRequest

GENERATE = "/v1beta/models/fake/model:generateContent"
STREAM = "/v1beta/models/fake/model:streamGenerateContent"
HELLO: Any = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
HERMES = "tools <tool_call>"

Serve = Callable[..., Running]


class Recording(FakeTemplate):
    """Keeps the messages that it was given."""

    def render(self, messages: list[Any], **options: Any) -> str:
        self.messages = list(messages)
        return super().render(messages, **options)


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve(FakeModel(engine=FakeEngine("Good day.", ends=True), template=Recording(HERMES)))


def refusal(server: Running, **more: Any) -> dict[str, Any]:
    reply = server.http().post(GENERATE, json=HELLO | more)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def test_names_of_the_examples_are_understood(server: Running) -> None:
    body = HELLO | {
        "system_instruction": {"parts": [{"text": "Be kind."}]},
        "generation_config": {"max_output_tokens": 4, "thinking_config": {"include_thoughts": True}},
    }
    found = server.http().post(GENERATE, json=body).json()
    [candidate] = found["candidates"]
    assert candidate["content"] == {"parts": [{"text": "Good"}], "role": "model"}
    assert candidate["finishReason"] == "MAX_TOKENS"
    assert [one.role for one in server.model.template.messages] == ["system", "user"]


def test_a_stream_without_events_is_an_array(server: Running) -> None:
    http = server.http()
    array = json.loads(http.post(STREAM, json=HELLO).content)
    lines = http.post(f"{STREAM}?alt=sse", json=HELLO).text.split("\n\n")
    for events in (array, [json.loads(line.removeprefix("data: ")) for line in lines if line]):
        parts = [
            part
            for one in events
            for c in one["candidates"]
            if "content" in c
            for part in c["content"]["parts"]
        ]
        assert "".join(part["text"] for part in parts) == "Good day."
        assert events[-1]["candidates"] == [{"index": 0, "finishReason": "STOP"}]


def test_clients_of_version_1_share_a_path_with_openai(server: Running) -> None:
    http = server.http()
    found = http.get("/v1/models", headers={"x-goog-api-key": "none"}).json()
    assert found["models"][0]["name"] == "models/fake/model"
    assert http.get("/v1/models").json()["object"] == "list"
    assert http.get("/v1beta/models/none").json()["error"]["status"] == "NOT_FOUND"


def test_keys(serve: Serve) -> None:
    http = serve(FakeModel(), api_key=("secret",)).http()
    assert http.post(GENERATE, json=HELLO).json()["error"]["status"] == "UNAUTHENTICATED"
    assert http.post(GENERATE, json=HELLO, headers={"x-goog-api-key": "secret"}).status_code == 200


def test_tokens_of_a_whole_request(server: Running) -> None:
    http, path = server.http(), "/v1beta/models/fake/model:countTokens"
    few = http.post(path, json=HELLO).json()["totalTokens"]
    body = {"generateContentRequest": HELLO | {"system_instruction": {"parts": [{"text": "Be kind."}]}}}
    assert http.post(path, json=body).json()["totalTokens"] > few > 0
    for wrong in ({}, HELLO | body, {"generateContentRequest": {"contents": 3}}):
        assert http.post(path, json=wrong).status_code == 400


def test_pages_of_models() -> None:
    with server_of(FakeModel(), FakeModel(name="other")) as server:
        pages(server.http())


def pages(http: httpx.Client) -> None:
    first = http.get("/v1beta/models?pageSize=1").json()
    rest = http.get("/v1beta/models", params={"pageToken": first["nextPageToken"]}).json()
    assert [one["baseModelId"] for one in first["models"] + rest["models"]] == ["fake/model", "other"]
    assert http.get("/v1beta/models?pageToken=x").status_code == 400


def test_a_format_reaches_the_grammar(server: Running) -> None:
    schema = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    server.http().post(GENERATE, json=HELLO | {"generationConfig": config})
    [request] = server.model.engine.submitted
    assert json.loads(request.constraint.text) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
    }


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"parts": []}]}, "contents[0].parts"),
        ({"contents": [{"parts": [{"text": ""}]}]}, "empty texts"),
        ({"contents": [{"parts": [{}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"parts": [{"text": "a", "functionCall": {"name": "f"}}]}]}, "one thing"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]}, "'f'"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}]}]}, "audio/wav"),
        ({"generationConfig": {"logprobs": 2}}, "responseLogprobs"),
        ({"generationConfig": {"responseSchema": {"type": "STRING"}}}, "responseMimeType"),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": 5, "thinkingLevel": "LOW"}}}, "a level"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "functionDeclarations"),
        ({"tools": [{"codeExecution": {}}]}, "codeExecution"),
        ({"tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "TUPLE"}}]}]}, "TUPLE"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_is_wrong_is_named(server: Running, more: dict[str, Any], named: str) -> None:
    error = refusal(server, **more)
    assert named in error["message"] and error["status"] == "INVALID_ARGUMENT" and error["code"] == 400


def test_schemas() -> None:
    given = {
        "type": "OBJECT",
        "nullable": True,
        "propertyOrdering": ["a"],
        "properties": {
            "a": {"type": "ARRAY", "items": {"type": "STRING"}, "minItems": "2"},
            "b": {"any_of": [{"type": "NUMBER"}, {"type": "STRING", "enum": ["x"], "nullable": True}]},
        },
    }
    assert json_schema(given, "tools") == {
        "type": ["object", "null"],
        "properties": {
            "a": {"type": "array", "items": {"type": "string"}, "minItems": 2},
            "b": {
                "anyOf": [
                    {"type": "number"},
                    {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
                ]
            },
        },
    }
    deep: dict[str, Any] = {"type": "STRING"}
    for _ in range(80):
        deep = {"type": "ARRAY", "items": deep}
    for wrong in (deep, {"items": 3}, {"minItems": "x"}, {"$ref": "#"}):
        with pytest.raises(InvalidRequest):
            json_schema(wrong, "tools")


def test_a_budget_that_is_spent_is_an_exhausted_resource(server: Running) -> None:
    server.model.engine.refusal = BudgetExceeded("spent")
    reply = server.http().post(GENERATE, json=HELLO)
    assert (reply.status_code, reply.json()["error"]["status"]) == (402, "RESOURCE_EXHAUSTED")
