"""Responses whose tools this server calls, read by the official client; the model is a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from in_process import Running

pytest.importorskip("mcp", reason="needs headrace[tools]")

from scripted import ScriptedModel

from headrace.config.mcp import read_mcp
from headrace.inference.requests import ChatRequest
from headrace.tools.mcp.gateway import McpGateway

RAW = Path(__file__).parents[1] / "tools" / "raw_server.py"
SHOP = {"type": "mcp", "server_label": "shop", "require_approval": "never"}


class Served:
    """A server whose model says what the test wants."""

    def __init__(self, running: Running) -> None:
        self.client = running.openai()
        self.http = running.http()
        self.service = running.server.config.app.state.service  # type: ignore[union-attr]

    def says(self, *said: Any) -> ScriptedModel:
        left = list(said)
        model = ScriptedModel(lambda request: left.pop(0) if len(left) > 1 else left[0])
        self.service.handler = model
        return model


@pytest.fixture
def served(serve: Callable[..., Running], tmp_path: Path) -> Served:
    (tmp_path / "people.csv").write_text("name,age\nAnn,30\nBob,40\n")
    shop = {"command": [sys.executable, str(RAW), "echo"], "allow": ["*"]}
    lock = tmp_path / "headrace.lock"
    gateway = McpGateway(read_mcp({"shop": shop}), lock)
    gateway.approve("shop", gateway.difference("shop")[0])
    gateway.close()
    new = shop | {"command": [*shop["command"], "new"]}
    return Served(
        serve(
            mcp={"shop": shop, "new": new},
            mcp_lock=str(lock),
            store=str(tmp_path / "store.sqlite3"),
            datasets={"people": f"file:{tmp_path}/people.csv"},
        )
    )


def test_tools_of_a_server_and_sql(served: Served) -> None:
    model = served.says(
        [("shop__echo", {"text": "hi"}), ("sql", {"sql": "SELECT sum(age) AS n FROM people"})], "70 years."
    )
    reply = served.client.responses.create(input="How old?", tools=[SHOP, {"type": "sql"}])  # type: ignore[list-item]
    assert reply.status == "completed" and reply.output_text == "70 years."
    calls = [one for one in reply.output if one.type == "mcp_call"]
    assert [(one.server_label, one.name, one.status) for one in calls] == [
        ("shop", "echo", "completed"),
        ("headrace", "sql", "completed"),
    ]
    assert calls[0].output == "echo hi" and "70" in (calls[1].output or "")
    assert reply.usage is not None and reply.usage.output_tokens == 20 + 9
    use = model.requests[0].tools
    assert use is not None
    assert {one.name for one in use.callable} == {
        *("shop__echo", "shop__other", "sql", "list_datasets", "table_schema")
    }
    # The conversation goes on with what the tools gave.
    model = served.says("Yes.")
    more = served.client.responses.create(input="Sure?", previous_response_id=reply.id)
    assert more.output_text == "Yes."
    roles = [(one.role, one.content) for one in model.requests[0].messages]
    assert [role for role, _ in roles] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert "echo hi" in (roles[2][1] or "") and (roles[2][1] or "").startswith("[result ")


def test_a_stream_has_the_events_of_calls(served: Served) -> None:
    served.says([("shop__echo", {"text": "hi"})], "done")
    with served.client.responses.create(input="x", tools=[SHOP], stream=True) as stream:  # type: ignore[list-item]
        events = list(stream)
    kinds = [one.type for one in events]
    numbers = [one.sequence_number for one in events]
    assert numbers == list(range(len(events)))
    assert [one for one in kinds if "mcp" in one] == [
        "response.mcp_call_arguments.done",
        "response.mcp_call.in_progress",
        "response.mcp_call.completed",
    ]
    assert kinds[-1] == "response.completed"
    added = [one.output_index for one in events if one.type == "response.output_item.added"]
    assert added == [0, 1]


def test_approval(served: Served) -> None:
    tool = {"type": "mcp", "server_label": "shop", "require_approval": {"never": {"tool_names": ["other"]}}}
    served.says([("shop__other", {}), ("shop__echo", {"text": "a"}), ("shop__echo", {"text": "b"})], "x")
    first = served.client.responses.create(input="Do it.", tools=[tool])  # type: ignore[list-item]
    asked = [one for one in first.output if one.type == "mcp_approval_request"]
    assert first.status == "completed" and first.output[0].type == "mcp_call"
    assert [json.loads(one.arguments)["text"] for one in asked] == ["a", "b"]
    model = served.says("Done.")
    answers: Any = [
        {"type": "mcp_approval_response", "approval_request_id": one.id, "approve": index == 0}
        for index, one in enumerate(asked)
    ]
    second = served.client.responses.create(input=answers, previous_response_id=first.id, tools=[tool])  # type: ignore[list-item]
    calls = [one for one in second.output if one.type == "mcp_call"]
    assert [(one.approval_request_id, one.output) for one in calls] == [
        (asked[0].id, "echo a"),
        (asked[1].id, None),
    ]
    assert "refused" in str(calls[1].error)
    assert second.output_text == "Done."
    ids = [call.id for one in model.requests[0].messages for call in one.tool_calls]
    answered = [one.tool_call_id for one in model.requests[0].messages if one.role == "tool"]
    assert sorted(ids) == sorted(answer for answer in answered if answer is not None) and len(set(ids)) == 3
    model = served.says("Bye.")
    served.client.responses.create(input="Thanks.", previous_response_id=second.id)
    again = [call.id for one in model.requests[0].messages for call in one.tool_calls]
    assert len(again) == len(set(again)) == 3  # each call stands in the conversation once


def test_functions_of_the_client_beside(served: Served) -> None:
    function = {"type": "function", "name": "ring", "parameters": {"type": "object", "properties": {}}}
    served.says([("shop__echo", {"text": "hi"}), ("ring", {})], "x")
    reply = served.client.responses.create(input="x", tools=[SHOP, function])  # type: ignore[list-item]
    assert [one.type for one in reply.output] == ["mcp_call", "function_call"]
    call = reply.output[1]
    served.says("Rang.")
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"}]  # type: ignore[union-attr]
    again = served.client.responses.create(
        input=output, previous_response_id=reply.id, tools=[SHOP, function]
    )  # type: ignore[list-item]
    assert again.output_text == "Rang."


def test_budgets_and_checks(served: Served) -> None:
    served.says([("shop__echo", {"text": "hi"})])
    extra: Any = {"budget": {"steps": 2}}
    reply = served.client.responses.create(input="x", tools=[SHOP], extra_body=extra)  # type: ignore[list-item]
    assert reply.status == "incomplete" and reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "steps"
    served.says([("shop__echo", {"text": "hi"})])
    reply = served.client.responses.create(input="x", tools=[SHOP], max_tool_calls=1)  # type: ignore[list-item]
    assert len([one for one in reply.output if one.type == "mcp_call"]) == 1
    served.says("nothing", "4")
    check: Any = {"verify": [{"kind": "sql", "sql": "SELECT CAST($1 AS INTEGER) = 4 AS ok"}]}
    reply = served.client.responses.create(input="2 + 2?", tools=[{"type": "sql"}], extra_body=check)  # type: ignore[list-item]
    assert reply.output_text == "4"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (
            {"type": "mcp", "server_label": "evil", "server_url": "https://evil.example/mcp"},
            "no server in [mcp]",
        ),
        (SHOP | {"server_url": "http://127.0.0.1:1/"}, "not the address"),
        (SHOP | {"headers": {"a": "b"}}, "headers is not taken"),
        (SHOP | {"allowed_tools": ["none"]}, "has no tool that may be used"),
        ({"type": "mcp", "server_label": "new"}, "approve"),
        ({"type": "search"}, "has no search"),
        ({"type": "web_search"}, "type"),
    ],
)
def test_tools_that_are_refused(served: Served, tool: Any, words: str) -> None:
    served.says("x")
    with pytest.raises(openai.APIStatusError) as raised:
        served.client.responses.create(input="x", tools=[tool])
    assert words in str(raised.value), raised.value


def test_a_response_in_the_background(served: Served) -> None:
    served.says([("shop__echo", {"text": "hi"})], "done")
    reply = served.client.responses.create(input="x", tools=[SHOP], background=True)  # type: ignore[list-item]
    while reply.status in ("queued", "in_progress"):
        reply = served.client.responses.retrieve(reply.id)
    assert reply.output_text == "done" and reply.output[0].type == "mcp_call"


def test_without_tools_nothing_changes(served: Served) -> None:
    asked: list[ChatRequest] = served.says("x").requests
    served.client.responses.create(input="x")
    assert asked[0].tools is None


def test_a_choice_among_tools_of_the_server_is_refused(served: Served) -> None:
    """A call that is demanded would be demanded at each step."""
    served.says("never")
    with pytest.raises(openai.BadRequestError, match="the model decides which tools of this server"):
        served.client.responses.create(input="x", tools=[SHOP], tool_choice="required")  # type: ignore[list-item]
