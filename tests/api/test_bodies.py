"""Bodies as structs: what is refused and how, sampling fields from their table, endpoints found by file."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from in_process import Running

import headrace.api
from headrace.api.anthropic.body import MessageBody
from headrace.api.http.body import RequestBody, checked, checked_body
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import find_endpoints
from headrace.api.http.openapi import Document
from headrace.api.ollama.options import Options
from headrace.api.openai.chat_completions import ChatBody
from headrace.api.openai.responses.body import CountBody, ResponseBody
from headrace.errors import InvalidRequest
from headrace.inference.accounts import Account
from headrace.sampling.params import PARAMETERS, SamplingParams
from headrace.storage.keys import KeyLimits

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
TURN = {"max_tokens": 5, "messages": MESSAGES}


def part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


@pytest.mark.parametrize(
    ("kind", "more", "message", "code"),
    [
        (ChatBody, {"n": 3.5}, "n: must be an integer, not 3.5", "invalid_type"),
        (ChatBody, {"n": True}, "n: must be an integer, not True", "invalid_type"),
        (ChatBody, {"messages": "x"}, "messages: must be an array, not 'x'", "invalid_type"),
        (ChatBody, {"messages": [1]}, "messages.0: must be an object, not 1", "invalid_type"),
        (ChatBody, {"messages": []}, "messages: must be an array of length >= 1", "invalid_value"),
        (ChatBody, {"stop": 5}, "stop: must be a string or an array, not 5", "invalid_type"),
        (ChatBody, {"stop": ["a", 5]}, "stop.1: must be a string, not 5", "invalid_type"),
        (
            ChatBody,
            {"logit_bias": {"1": "a"}},
            "logit_bias.*: must be a number",
            "invalid_type",
        ),
        (ChatBody, {"stop_token_ids": [2**31]}, "stop_token_ids.0: must be an integer <= ", "invalid_value"),
        (ChatBody, {"temperature": 10**400}, "temperature: number out of range", "invalid_value"),
        (ChatBody, {"early_stopping": "x"}, "must be one of true, false, never, not 'x'", "invalid_value"),
        (ChatBody, {"vote": {}}, "vote.extract: missing, it must be one of", "missing_required_parameter"),
        (ChatBody, {"vote": {"extrct": 1}}, "vote.extrct: unknown field: did you", "unknown_parameter"),
        (ChatBody, {"temprature": 1}, "did you mean 'temperature'?", "unknown_parameter"),
        (ChatBody, {"audio": {}}, "audio is not supported yet", "unsupported_parameter"),
        (MessageBody, {"messages": [{"content": ""}]}, "role: missing", "missing_required_parameter"),
        (
            MessageBody,
            part(type="imag"),
            "must be one of text, image, tool_result, not 'imag'",
            "invalid_value",
        ),
        (MessageBody, part(type="text", text="a", txt=1), "did you mean 'text'?", "unknown_parameter"),
        (MessageBody, {"system": [{"text": "a"}]}, "system.0.type: missing", "missing_required_parameter"),
        (MessageBody, {"thinking": {"type": "on"}}, "must be one of enabled, adaptive", "invalid_value"),
        (ResponseBody, {"metadata": {"a" * 65: ""}}, "metadata: its keys must be a string", "invalid_value"),
        (ResponseBody, {"n": 2}, "send one request for each answer", "unknown_parameter"),
        (CountBody, {"temperature": 1}, "unknown parameter 'temperature'", "unknown_parameter"),
        (Options, {"num_predict": "9"}, "num_predict: must be an integer, not '9'", "invalid_type"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(
    kind: type[RequestBody], more: dict[str, Any], message: str, code: str
) -> None:
    whole = {"input": "x"} if issubclass(kind, ResponseBody) else {} if kind is Options else TURN
    with pytest.raises(InvalidRequest) as refused:
        checked(kind, {**whole, **more})
    assert message in refused.value.message
    assert refused.value.code == code
    assert refused.value.param == next(iter(more))
    if kind is ChatBody and (name := next(iter(more))) in kind.__struct_fields__ and name not in whole:
        checked(kind, {**whole, name: None})  # is as if it were not given


@pytest.mark.parametrize("content", [[], 3, "x", None, True])
def test_a_body_is_an_object(content: object) -> None:
    with pytest.raises(InvalidRequest, match="the body: must be an object"):
        checked(ChatBody, content)


def test_integers_may_be_written_with_a_fraction() -> None:
    """JSON Schema, and so the document, takes 1.0 for an integer."""
    body, _ = checked(ChatBody, {**TURN, "n": 3.0, "stop_token_ids": [1.0] * 12})
    assert type(body.n) is int and body.n == 3
    with pytest.raises(InvalidRequest, match=r"write 1 for 1\.0"):
        checked(ChatBody, {**TURN, "stop_token_ids": [1.0] * 1000})


@pytest.mark.parametrize(
    "text",
    [
        '{"messages": [], "temperature": NaN}',
        '{"messages": [], "temperature": -Infinity}',
        '{"messages": [], "temperature": 1e999}',
        '{"messages": [], "seed": ' + "1" * 5000 + "}",
        '{"messages": ' + "[" * 100_000,
        '{"messages": [{"role": "user", "content": "x"}], "tools": ' + "[" * 900 + "]" * 900 + "}",
        '{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", '
        '"json_schema": {"schema": ' + '{"items": ' * 900 + "{}" + "}" * 902 + "}",
        "",
        "nul",
        '{"messages": "\\ud800"}',
    ],
    ids=lambda text: text[:60],
)
def test_numbers_and_nesting_beyond_bounds(server: Running, text: str) -> None:
    reply = server.http().post(CHAT, content=text)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["code"] in ("invalid_json", "invalid_value", "grammar_error", None)
    assert server.http().get("/health").status_code == 200


def test_every_sampling_parameter_is_a_field() -> None:
    """Of OpenAI's bodies, and under its name there of Ollama's options; with its bounds in the document."""
    chat = msgspec.json.schema(ChatBody)["$defs"]["ChatBody"]["properties"]
    of_ollama = msgspec.json.schema(Options)["$defs"]["Options"]["properties"]
    for name, row in PARAMETERS.items():
        if name == "logprobs":
            continue
        text = json.dumps(chat[name])
        assert json.dumps(row.help) in text, name
        for bound in (row.high, row.most):
            assert bound is None or json.dumps(bound) in text, name
        assert row.ollama is None or row.ollama in of_ollama, name
    assert checked(ChatBody, {**TURN, "xtc_probability": 0.5})[0].sampling() == {
        "max_tokens": 5,
        "xtc_probability": 0.5,
    }
    given = checked(Options, {"repeat_penalty": 1.5, "stop": "a", "num_predict": -1, "seed": -1})[
        0
    ].sampling()
    assert given == {"repetition_penalty": 1.5, "stop": ("a",)}


def test_endpoints_are_found_by_file_in_one_order() -> None:
    found = find_endpoints(headrace.api)
    assert found == find_endpoints(headrace.api)
    routes = [(method, one.path) for one in found for method in one.methods.split()]
    assert len(routes) == len(set(routes)) > 50
    assert {one.handle.__module__.split(".")[2] for one in found if one.handle} >= {
        *("admin", "anthropic", "http", "ollama", "openai")
    }
    assert all(one.handle is not None and one.handle.__doc__ for one in found)


def test_the_document_is_rendered_once() -> None:
    document = Document(find_endpoints(headrace.api))
    assert document.json is document.json and document.page is document.page
    assert json.loads(document.json) == json.loads(json.dumps(document.content))


def test_a_method_that_a_path_does_not_take_is_answered_with_those_it_takes(server: Running) -> None:
    found = find_endpoints(headrace.api)
    for path in {one.path for one in found}:
        url = path.replace("{name:path}", "a").replace("{", "").replace("}", "")
        reply = server.http().request("PATCH", url)
        assert reply.status_code == 405, path
        own = {method for one in found if one.path == path for method in one.methods.split()}
        assert own <= set(reply.headers["allow"].split(", ")), path
    assert server.http().request("PATCH", "/v1/files").headers["allow"] == "GET, POST"
    assert server.http().request("PATCH", "/nothing").status_code == 404


def test_nothing_of_fastapi_or_pydantic_is_imported() -> None:
    script = "import sys, headrace.api.app; print([m for m in ('fastapi', 'pydantic') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_usage_in_each_chunk(server: Running) -> None:
    """As guidellm asks for it: the counts of the choice so far, then those of the whole reply."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": MESSAGES, "max_tokens": 4, "stream": True, "stream_options": options}
    lines = server.http().post(CHAT, json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    usages = [chunk["usage"] for chunk in chunks]
    counts = [usage["completion_tokens"] for usage in usages[:-1]]
    assert counts == sorted(counts) and counts[0] <= 1 and len(set(counts)) > 3
    assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}
    assert all(
        usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages
    )
    assert chunks[-1]["choices"] == [] and "prompt_tokens_details" in usages[-1]
    assert "warnings" not in chunks[0]


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
        ({"include_usage": False, "chunk_size": 3}, "stream_options.chunk_size"),
    ],
)
def test_stream_options_without_effect_are_named(
    server: Running, options: dict[str, Any], warned: str
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "stream": True, "stream_options": options}
    reply = server.http().post(CHAT, json=body)
    assert reply.status_code == 200
    first = json.loads(reply.text.split("\n\n")[0].removeprefix("data: "))
    assert [warning["param"] for warning in first["warnings"]] == [warned]
    assert "usage" not in first


def test_legal_values_at_the_end_of_their_range(server: Running) -> None:
    http = server.http()
    for more in ({"top_p": 0}, {"best_of": 0}, {"best_of": 0, "n": 2}, {"top_p": 0.0, "temperature": 2}):
        reply = http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2, **more})
        assert reply.status_code == 200, reply.text
    assert SamplingParams(top_p=0).top_p == 0
    reply = http.post("/v1/responses", json={"input": "x", "max_tool_calls": 0, "max_output_tokens": 2})
    assert reply.status_code == 200, reply.text
    assert [warning["param"] for warning in reply.json()["warnings"]] == ["max_tool_calls"]


def test_json_object_with_a_schema(server: Running) -> None:
    """As llama.cpp's server has it."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    def constraint(form: dict[str, Any]) -> Any:
        return checked(ChatBody, {**TURN, "response_format": form})[0].constraint()

    named = constraint({"type": "json_schema", "json_schema": {"schema": schema}})
    assert constraint({"type": "json_object", "schema": schema}) == named
    assert constraint({"type": "json_object", "schema": {}}).kind == "json_object"
    for form in ({"type": "json_object", "schema": 3}, {"type": "text", "schema": schema}):
        with pytest.raises(InvalidRequest) as refused:
            constraint(form)
        assert refused.value.param == "response_format"


def new_call() -> HttpCall:
    return HttpCall(request_id="r", method="POST", path=CHAT, account=Account("", KeyLimits()))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{}] * 150_000, r"150,00\d objects and arrays, at most 50,000"),
        ([1000] * 4_000_000, r"4,000,0\d\d values \(numbers, .*at most 500,000"),
        ([""] * 600_000, r"600,0\d\d values"),
    ],
    ids=["objects", "numbers", "strings"],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, value: list[object], message: str
) -> None:
    many = json.dumps({**TURN, "guided_json": value}).encode()
    monkeypatch.setattr(msgspec.json, "decode", None)
    with pytest.raises(InvalidRequest, match=message) as refused:
        checked_body(ChatBody, many, new_call())
    assert refused.value.code == "body_too_complex"


def test_signs_in_texts_are_no_values() -> None:
    text = {"messages": [{"role": "user", "content": '{["\\,' * 600_000}]}
    assert checked_body(ChatBody, json.dumps(text).encode(), new_call()).messages


def test_many_numbers_over_http(server: Running) -> None:
    reply = server.http().post("/v1/embeddings", content=b'{"input":[' + b"1," * 600_000 + b"1]}")
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "body_too_complex"
    assert "600,0" in reply.json()["error"]["message"]
