"""Structured output through the official client, over the model that ships."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import openai
import pytest
from in_process import Running, running_server
from pydantic import BaseModel, Field

from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions

SQL = {"tables": {"t": ["a", "the b"]}}
MESSAGES = [{"role": "user", "content": "Who came to the house?"}]


class Guest(BaseModel):
    """What the model is asked to fill in."""

    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=99)
    moods: list[str] = Field(max_length=0)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=16, max_batch_tokens=128))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def server(model: LoadedModel) -> Iterator[Running]:
    with running_server(model) as running:
        yield running


def chat(server: Running, **fields: object) -> str:
    reply = server.openai().chat.completions.create(
        model=server.model.name, messages=MESSAGES, max_tokens=200, **{"seed": 1, **fields}
    )
    assert reply.choices[0].finish_reason == "stop"
    return reply.choices[0].message.content


def test_the_sdk_parses_its_own_models(server: Running) -> None:
    for seed in range(5):
        reply = server.openai().chat.completions.parse(
            model=server.model.name, messages=MESSAGES, response_format=Guest, seed=seed, max_tokens=300
        )
        guest = reply.choices[0].message.parsed
        assert isinstance(guest, Guest) and guest.moods == []


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_is_enforced_whatever_strict_says(server: Running, strict: bool | None) -> None:
    schema = {"name": "answer", "schema": {"enum": ["red", 7]}, "strict": strict}
    assert chat(server, response_format={"type": "json_schema", "json_schema": schema}) in ('"red"', "7")


def test_a_json_object(server: Running) -> None:
    reply = server.openai().chat.completions.create(
        model=server.model.name, messages=MESSAGES, max_tokens=12, response_format={"type": "json_object"}
    )
    assert reply.choices[0].message.content.startswith("{")
    assert reply.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"guided_regex": "[a-z]{4} [0-9]"}, "[a-z]{4} [0-9]"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_json": {"const": {"a": [1]}}}, r'\{\s*"a"\s*:\s*\[\s*1\s*\]\s*\}'),
        ({"guided_json": '{"const": 3}'}, "3"),
        ({"guided_grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"),
        ({"guided_grammar": 'start: "x" /[0-9]/'}, "x[0-9]"),
        ({"structured_outputs": {"regex": "b{3}", "json_object": False}}, "bbb"),
        ({"structured_outputs": {"choice": ["one"]}}, "one"),
    ],
)
def test_vllm_names(server: Running, extra: dict[str, object], pattern: str) -> None:
    assert re.fullmatch(pattern, chat(server, extra_body=extra))
    completion = server.openai().completions.create(
        model=server.model.name, prompt="Left or right:", max_tokens=100, seed=2, extra_body=extra
    )
    assert re.fullmatch(pattern, completion.choices[0].text)


ADD = {"begin": "<f=add>", "schema": {"enum": [[1], [2]]}, "end": "</f>"}
TAG = {"type": "structural_tag", "structures": [ADD], "triggers": ["<f="]}
FORMAT = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "It is "},
            {"type": "tag", "begin": "<f=add>", "end": "</f>", "content": {"type": "json_schema"}},
        ],
    },
}
FORMAT["format"]["elements"][1]["content"]["json_schema"] = ADD["schema"]


def test_structural_tags(server: Running) -> None:
    pattern = r"It is <f=add>\[\s*[12]\s*\]</f>"
    assert re.fullmatch(pattern, chat(server, extra_body={"response_format": FORMAT}))
    for given in (FORMAT, json.dumps(FORMAT)):
        assert re.fullmatch(
            pattern, chat(server, extra_body={"structured_outputs": {"structural_tag": given}})
        )
    text = server.openai().chat.completions.create(
        model=server.model.name, messages=MESSAGES, max_tokens=30, extra_body={"response_format": TAG}
    )
    assert text.choices[0].message.content and "<f=" not in text.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="begins with none of the triggers") as caught:
        chat(server, extra_body={"response_format": {**TAG, "triggers": ["<g="]}})
    assert caught.value.param == "response_format"


def test_streams_and_choices(server: Running) -> None:
    request = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", "bb"]}}}}
    stream = server.openai().chat.completions.create(
        model=server.model.name, messages=MESSAGES, n=3, seed=4, stream=True, **request
    )
    texts = {0: "", 1: "", 2: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(json.loads(text) in ("a", "bb") for text in texts.values())


def test_what_is_not_supported_is_a_400_that_names_it(server: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"pattern": "x"}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="keyword 'pattern' at #/properties/a") as caught:
            server.openai().chat.completions.create(
                model=server.model.name, messages=MESSAGES, response_format=form, stream=stream
            )
        assert caught.value.param == "response_format" and caught.value.code == "grammar_error"


def test_what_a_schema_does_not_enforce_stands_in_warnings(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2], "enumNames": ["one", "two"], "x-order": 3}},
        "required": ["a"],
        "markdownDescription": "*x*",
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for extra, closed in (({}, True), ({"disable_additional_properties": False}, False)):
        reply = server.openai().chat.completions.create(
            model=server.model.name, messages=MESSAGES, response_format=form, max_tokens=9, extra_body=extra
        )
        said = [warning["message"] for warning in reply.warnings]
        assert said[0] == "not part of what is enforced: enumNames, x-order, markdownDescription"
        assert [text for text in said[1:] if "additionalProperties" in text] == said[1:]
        assert len(said) == 1 + closed


def test_allowed_token_ids(server: Running) -> None:
    reply = server.openai().completions.create(
        model=server.model.name, prompt="A", max_tokens=5, extra_body={"allowed_token_ids": [70]}
    )
    assert reply.choices[0].text == server.model.tokenizer.decode([70] * 5)


@pytest.mark.parametrize("extra", [{"structured_outputs": {"sql": SQL}}, {"guided_sql": SQL}])
def test_sql_of_a_table(server: Running, extra: dict[str, object]) -> None:
    completion = server.openai().completions.create(
        model=server.model.name, prompt="Once", max_tokens=40, temperature=0, extra_body=extra
    )
    assert re.match(r'SELECT (DISTINCT )?(a|"the b"|\*|[A-Z]+\()', completion.choices[0].text)
    reply = server.http().post(
        "/v1/completions", json={"prompt": "Once", "guided_sql": {"tables": {"t": ["a", "A"]}}}
    )
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "guided_sql"


def test_openapi_shows_the_formats(server: Running) -> None:
    document = server.http().get("/openapi.json").json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    properties = body["schema"]["properties"]
    assert "always enforced" in properties["response_format"]["description"]
    assert {"json", "regex", "choice", "grammar", "sql", "json_object", "structural_tag"} == set(
        properties["structured_outputs"]["anyOf"][0]["properties"]
    )


class Story(BaseModel):
    """Of any length."""

    title: str
    chapters: list[str]


def test_an_answer_ends_within_max_tokens(server: Running) -> None:
    client, fields = server.openai(), {"model": server.model.name, "messages": MESSAGES, "max_tokens": 60}
    for seed in range(4):
        reply = client.chat.completions.parse(
            **fields, seed=seed, response_format=Story, extra_body={"finish_within_max_tokens": True}
        )
        [choice] = reply.choices
        assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Story)
        assert choice.stop_reason == "finish_within_max_tokens"
    with pytest.raises(
        openai.BadRequestError, match="finish_within_max_tokens needs an output with a grammar"
    ):
        client.chat.completions.create(**fields, extra_body={"finish_within_max_tokens": True})
