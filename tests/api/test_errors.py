"""Every refusal: OpenAI's shape, the right class, a request id."""

from __future__ import annotations

import asyncio

import openai
import pytest
from fake import FakeModel
from in_process import Running, raw
from starlette.requests import Request as HttpRequest

import headrace.api.http.bounded_protocol
from headrace.api.app import create_app
from headrace.api.http.call_context import HttpCall
from headrace.api.http.errors import ClientGone
from headrace.api.http.request_body import read_body
from headrace.config.sources import load_settings
from headrace.errors import (
    ContextLengthExceeded,
    EngineStopped,
    HeadraceError,
    InvalidRequest,
    Overloaded,
)
from headrace.inference.accounts import Account
from headrace.storage.keys import KeyLimits

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


def check_shape(reply) -> dict:
    error = reply.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"]
    assert reply.headers["x-request-id"]
    return error


def test_a_client_that_leaves_while_it_sends_is_no_failure_of_the_server() -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    settings = load_settings(environ={}, folders=[])
    call = HttpCall(request_id="id", method="POST", path="/", account=Account("", KeyLimits()))
    scope = {"type": "http", "method": "POST", "headers": [], "app": create_app(FakeModel(), settings)}
    request = HttpRequest(scope | {"headrace.call": call}, receive)
    with pytest.raises(ClientGone):
        asyncio.run(read_body(request))


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"tools": [{"type": "function"}]}, "tools", None),
        ({"response_format": {"type": "xml"}}, "response_format", None),
        ({"response_format": {"type": "json_schema"}}, "response_format", None),
        ({"response_format": {"type": "text"}, "guided_regex": 3}, "guided_regex", "invalid_type"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", None),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", None),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", None),
        ({"guided_choice": []}, "guided_choice", "invalid_value"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"temperature": "0.5"}, "temperature", "invalid_type"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", None),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 10**400}, "max_tokens", "invalid_value"),
        ({"stop": "x" * 100_000, "n": 128}, "stop", "invalid_value"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", None),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", None),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias", "invalid_value"),
        ({"stop": ["s"] * 17}, "stop", "invalid_value"),
        ({"stop": 3}, "stop", "invalid_type"),
        ({"deadline_s": 0}, "deadline_s", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options", "invalid_type"),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": ...}, "messages", "missing_required_parameter"),
        ({"reasoning": {"efort": "low"}}, "reasoning", "unknown_parameter"),
        ({"vote": {}}, "vote", "missing_required_parameter"),
        ({"vote": {"extract": "all"}}, "vote", "invalid_value"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", None),
    ],
    ids=str,
)
def test_bad_parameters(server: Running, body, param, code) -> None:
    whole = {"messages": MESSAGES} | body
    reply = server.http().post(CHAT, json={name: whole[name] for name in whole if whole[name] is not ...})
    assert reply.status_code == 400, reply.text
    error = check_shape(reply)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["code"] == code
    assert server.model.engine.submitted == []


def test_not_a_number_is_refused(server: Running) -> None:
    for name in ("temperature", "top_p", "deadline_s"):
        body = '{"messages": [{"role": "user", "content": "x"}], "' + name + '": NaN}'
        assert server.http().post(CHAT, content=body).status_code == 400


def test_an_unknown_parameter_is_told_its_neighbor(server: Running) -> None:
    reply = server.http().post(CHAT, json={"messages": MESSAGES, "temprature": 1})
    assert "did you mean 'temperature'?" in reply.json()["error"]["message"]


def test_neutral_values_are_accepted(server: Running) -> None:
    body = {
        "messages": MESSAGES,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "audio": None,
        "store": False,
        "temperature": None,
        "max_tokens": 1,
    }
    reply = server.http().post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    assert "warnings" not in reply.json()


@pytest.mark.parametrize("streamed", [True, False])
def test_fields_without_effect_are_named_in_warnings(server: Running, streamed: bool) -> None:
    client = server.openai()
    more = {"user": "me", "metadata": {"a": "b"}, "store": True}
    reply = client.chat.completions.create(
        model="fake/model", messages=MESSAGES, max_tokens=2, stream=streamed, **more
    )
    chunks = list(reply) if streamed else [reply]
    assert {warning["param"] for warning in chunks[0].warnings} == {"user", "metadata", "store"}
    assert all("warnings" not in chunk.model_extra for chunk in chunks[1:])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"null"])
def test_bodies_that_are_no_object(server: Running, body: bytes) -> None:
    reply = server.http().post(CHAT, content=body)
    assert reply.status_code == 400
    check_shape(reply)


def test_deep_json_is_refused(server: Running) -> None:
    body = b'{"messages":' + b"[" * 100_000
    reply = server.http().post(CHAT, content=body)
    assert reply.status_code == 400
    check_shape(reply)


def test_a_body_over_32_mb_is_413(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.bounded_protocol, "LINGER_S", 0.2)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {2**25 + 1}\r\n\r\n"
    assert b" 413 " in raw(server, head.encode()).partition(b"\r\n")[0]

    def endless():
        for _ in range(40):
            yield b" " * 2**20

    reply = server.http().post(CHAT, content=endless())
    assert reply.status_code == 413
    assert check_shape(reply)["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", CHAT, 405), ("POST", "/health", 405), ("GET", "/v1/models/x", 404)],
)
def test_wrong_addresses(server: Running, method: str, path: str, status: int) -> None:
    reply = server.http().request(method, path)
    assert reply.status_code == status
    check_shape(reply)


def test_another_model_is_404_and_names_what_is_served(server: Running) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        server.openai().chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert "fake/model" in caught.value.message


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("bad", param="prompt"), 400, "invalid_request_error"),
        (ContextLengthExceeded("long"), 400, "invalid_request_error"),
        (Overloaded("full"), 503, "server_error"),
        (EngineStopped("gone"), 503, "server_error"),
    ],
)
def test_each_class_has_its_status(server: Running, error: HeadraceError, status: int, kind: str) -> None:
    server.model.engine.refusal = error
    reply = server.http().post(CHAT, json={"messages": MESSAGES})
    assert reply.status_code == status
    assert check_shape(reply)["type"] == kind
    assert ("retry-after" in reply.headers) == (status == 503)


def test_an_unexpected_failure_keeps_its_secrets(server: Running, caplog) -> None:
    server.model.engine.refusal = RuntimeError("/secret/path")
    reply = server.http().post(CHAT, json={"messages": MESSAGES})
    assert reply.status_code == 500
    assert check_shape(reply)["type"] == "server_error"
    assert "secret" not in reply.text
    server.server.should_exit = True
    server.thread.join(10)  # the log line follows the reply
    assert "/secret/path" in caplog.text


def test_the_client_may_name_its_request(server: Running) -> None:
    sent = {"x-request-id": "mine-1"}
    assert server.http(headers=sent).get("/health").headers["x-request-id"] == "mine-1"
    bad = {"x-request-id": "x" * 300}
    assert server.http(headers=bad).get("/health").headers["x-request-id"].startswith("req_")
