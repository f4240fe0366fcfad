"""Every refusal in Anthropic's shape: each class of the official client's errors for what it stands for."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running, running_server
from test_anthropic_messages import HELLO, HERMES, MODEL, TIME, WEATHER, Serve

import headrace.api.http.request_body
from headrace.errors import (
    BudgetExceeded,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineStopped,
    HeadraceError,
    InvalidRequest,
    Overloaded,
)

BODY: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 9}
CALLED: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "time", "input": {}}]}


def check_shape(reply: Any, kind: str) -> dict[str, Any]:
    body = reply.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"]
    assert body["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    return body["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temprature": 1}, "temprature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "x"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "text"),
        ({"messages": [*HELLO, CALLED]}, "tool_result"),
        ({"messages": [*HELLO, {"role": "assistant", "content": ""}]}, "no text to continue"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_9"}]}]},
            "call_9",
        ),
        (
            {
                "messages": [
                    CALLED,
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}
                        ],
                    },
                ]
            },
            "image",
        ),
        ({"messages": [*HELLO, {"role": "assistant", "content": "a"}], "tools": [TIME]}, "tools"),
        (
            {
                "messages": [*HELLO, {"role": "assistant", "content": "a"}],
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_config.format",
        ),
        (
            {
                "messages": [*HELLO, {"role": "assistant", "content": "a"}],
                "thinking": {"type": "adaptive"},
            },
            "thinking",
        ),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"stop_sequences": ["s"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [WEATHER, WEATHER]}, "rename"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools.0.input_schema"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"tools": [TIME | {"defer_loading": True}]}, "defer_loading"),
        ({"tool_choice": {"type": "any"}}, "needs tools"),
        ({"tools": [TIME], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
        ({"tools": [TIME], "tool_choice": {"type": "maybe"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "smaller than max_tokens"),
        ({"thinking": {"type": "between_tools"}}, "between_tools"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
        ({"output_config": {"effort": "huge"}}, "effort"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"cache_control": {"type": "forever"}}, "cache_control"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ],
)
def test_bad_input_is_a_400_that_names_it(refusing: Running, change: dict[str, Any], words: str) -> None:
    body = {name: value for name, value in (BODY | change).items() if value is not None}
    reply = refusing.http().post("/v1/messages", json=body)
    assert reply.status_code == 400
    assert words in check_shape(reply, "invalid_request_error")["message"]
    assert refusing.model.engine.submitted == []


@pytest.fixture(scope="module")
def refusing() -> Any:
    with running_server(FakeModel(template=FakeTemplate(HERMES))) as running:
        yield running


@pytest.mark.parametrize(
    ("error", "kind", "status", "name"),
    [
        (InvalidRequest("no"), anthropic.BadRequestError, 400, "invalid_request_error"),
        (ContextLengthExceeded("long"), anthropic.BadRequestError, 400, "invalid_request_error"),
        (BudgetExceeded("spent"), anthropic.APIStatusError, 402, "billing_error"),
        (DeadlineExceeded("late"), anthropic.GatewayTimeoutError, 504, "timeout_error"),
        (Overloaded("full", retry_after_s=2.0), anthropic.OverloadedError, 529, "overloaded_error"),
        (EngineStopped("gone"), anthropic.OverloadedError, 529, "overloaded_error"),
        (HeadraceError("defect"), anthropic.InternalServerError, 500, "api_error"),
        (RuntimeError("/secret"), anthropic.InternalServerError, 500, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_refusals(
    serve: Serve, error: Exception, kind: type[Any], status: int, name: str, stream: bool
) -> None:
    server = serve(FakeModel())
    server.model.engine.refusal = error
    with pytest.raises(kind) as caught:
        server.anthropic().messages.create(**BODY, stream=stream)
    refused = caught.value
    assert (refused.status_code, refused.type) == (status, name)
    assert refused.request_id == refused.body["request_id"]
    assert "secret" not in refused.message
    if isinstance(error, Overloaded):
        assert refused.response.headers["retry-after"] == "2"
        assert refused.error_code == "overloaded"


def test_the_client_comes_back_after_overload(serve: Serve) -> None:
    server = serve(FakeModel())
    engine = server.model.engine
    engine.refusal = Overloaded("full", retry_after_s=0.01)
    plain = engine.submit

    def submit(*arguments: Any) -> Any:
        try:
            return plain(*arguments)
        finally:
            engine.refusal = None

    engine.submit = submit
    assert server.anthropic(max_retries=1).messages.create(**BODY).content


def test_keys(serve: Serve) -> None:
    server = serve(FakeModel(), api_key="secret")
    for client in (server.anthropic(api_key="wrong"), server.anthropic(api_key=None, auth_token="wrong")):
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(**BODY)
        assert caught.value.type == "authentication_error"
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.type == "authentication_error"
    for client in (server.anthropic(api_key="secret"), server.anthropic(api_key=None, auth_token="secret")):
        assert client.messages.create(**BODY).content
        assert client.models.list().data
    check_shape(server.http().post("/v1/messages", json=BODY), "authentication_error")


def test_a_foreign_page_is_forbidden(serve: Serve) -> None:
    client = serve(FakeModel()).anthropic(default_headers={"origin": "https://elsewhere.example"})
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        client.messages.create(**BODY)
    assert caught.value.type == "permission_error"


def test_what_is_not_there(serve: Serve) -> None:
    server = serve(FakeModel())
    client = server.anthropic()
    for ask in (
        lambda: client.messages.create(**BODY | {"model": "other"}),
        lambda: client.messages.count_tokens(model="other", messages=HELLO),
        lambda: client.models.retrieve("other"),
        lambda: client.messages.batches.retrieve("msgbatch_1"),
    ):
        with pytest.raises(anthropic.NotFoundError) as caught:
            ask()
        assert caught.value.type == "not_found_error"
    check_shape(server.http().get("/v1/messages/other"), "not_found_error")
    wrong = server.http().get("/v1/messages")
    assert wrong.status_code == 405
    check_shape(wrong, "invalid_request_error")


def test_a_body_that_is_too_large(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.api.http.request_body, "BODY_LIMIT_BYTES", 10_000)
    client = serve(FakeModel()).anthropic()
    with pytest.raises(anthropic.ContentTooLargeError) as caught:
        client.messages.create(**BODY | {"system": "x" * 20_000})
    assert caught.value.body["error"]["type"] == "request_too_large"


def test_limits_of_a_key(serve: Serve) -> None:
    server = serve(FakeModel(), api_key="one", key_rpm=1)
    client = server.anthropic(api_key="one")
    client.messages.create(**BODY)
    with pytest.raises(anthropic.RateLimitError) as caught:
        client.messages.create(**BODY)
    assert caught.value.type == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) > 0


def test_a_server_that_is_full(serve: Serve) -> None:
    server = serve(FakeModel(), max_concurrent_requests=1)
    engine = server.model.engine
    engine.go.clear()
    with (
        server.anthropic().messages.create(**BODY, stream=True),
        pytest.raises(anthropic.OverloadedError) as caught,
    ):
        server.anthropic().messages.create(**BODY)
    engine.go.set()
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")


def test_a_template_that_is_missing_or_refuses_tools(serve: Serve) -> None:
    with pytest.raises(anthropic.BadRequestError, match="template"):
        serve(FakeModel(template=None)).anthropic().messages.create(**BODY)
    with pytest.raises(anthropic.BadRequestError, match="does not know tools"):
        serve(FakeModel(engine=FakeEngine())).anthropic().messages.create(**BODY, tools=[TIME])


def test_what_is_no_json(serve: Serve) -> None:
    http = serve(FakeModel()).http()
    for body in (b"", b"{", b"[]", b"\xff", b'{"a": 1' + b"0" * 5000 + b"}"):
        reply = http.post("/v1/messages", content=body)
        assert reply.status_code == 400
        check_shape(reply, "invalid_request_error")


def test_a_schema_of_great_depth_is_no_failure_of_the_server(serve: Serve) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "object", "properties": {"a": schema}}
    http = serve(FakeModel(template=FakeTemplate(HERMES))).http()
    for more in (
        {"tools": [{"name": "deep", "input_schema": schema}]},
        {"tools": [{"name": "deep", "input_schema": schema, "strict": True}]},
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"messages": [{"role": "assistant", "content": [CALLED["content"][0] | {"input": schema}]}, *HELLO]},
    ):
        assert http.post("/v1/messages", json=BODY | more).status_code in (200, 400)
