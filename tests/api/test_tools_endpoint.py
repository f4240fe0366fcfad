"""/v1/tools and /v1/mcp: the server's own tools and those of MCP servers, by HTTP and by the official SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from in_process import Running

pytest.importorskip("mcp", reason="needs headrace[tools]")

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from headrace.config.mcp import read_mcp
from headrace.tools.mcp.gateway import McpGateway

RAW = Path(__file__).parents[1] / "tools" / "raw_server.py"
OWN = ["models", "chat", "embed", "list_datasets", "table_schema", "sql"]


@pytest.fixture
def served(serve: Callable[..., Running], tmp_path: Path) -> Running:
    (tmp_path / "people.csv").write_text("name,age\nAnn,30\nBob,40\n")
    shop = {"command": [sys.executable, str(RAW), "echo"], "allow": ["echo"], "keys": ["key 1"]}
    gone = {"command": "/no/such/program", "allow": ["*"]}
    lock = tmp_path / "headrace.lock"
    gateway = McpGateway(read_mcp({"shop": shop}), lock)
    gateway.approve("shop", gateway.difference("shop")[0])
    gateway.close()
    return serve(
        mcp={"shop": shop, "gone": gone},
        mcp_lock=str(lock),
        datasets={"people": f"file:{tmp_path}/people.csv"},
        api_key="first,second",
    )


def test_tools_over_http(served: Running) -> None:
    http = served.http(headers={"authorization": "Bearer first"})
    listed = http.get("/v1/tools").json()
    assert [one["name"] for one in listed["data"]] == [*OWN, "shop__echo"]
    assert [one["pinned"] for one in listed["data"]] == [False] * 6 + [True]
    states = {one["name"]: one for one in listed["servers"]}
    assert [one["status"] for one in states["shop"]["tools"]] == ["approved", "denied"]
    assert "not approved" in states["gone"]["error"]
    reply = http.post("/v1/tools/shop__echo", json={"arguments": {"text": "hi"}}).json()
    assert (reply["text"], reply["is_error"]) == ("echo hi", False)
    rows = http.post("/v1/tools/sql", json={"arguments": {"sql": "SELECT sum(age) AS s FROM people"}}).json()
    assert json.loads(rows["text"]) == [{"s": "70"}] or json.loads(rows["text"]) == [{"s": 70}]
    wrong = http.post("/v1/tools/sql", json={"arguments": {"sql": "DROP TABLE people"}}).json()
    assert wrong["is_error"] and "only SELECT" in wrong["text"]
    schema = http.post("/v1/tools/table_schema", json={"arguments": {"dataset": "people"}}).json()
    assert [one["name"] for one in json.loads(schema["text"])] == ["name", "age"]
    answer = http.post("/v1/tools/chat", json={"arguments": {"message": "hello there"}}).json()
    assert answer["text"] and not answer["is_error"]
    long = {"message": "word " * 700}  # the default of max_tokens does not fit behind it
    answer = http.post("/v1/tools/chat", json={"arguments": long}).json()
    assert answer["text"] and not answer["is_error"], answer
    answer = http.post("/v1/tools/chat", json={"arguments": long | {"max_tokens": 1024}}).json()
    assert answer["is_error"] and "4,096" in answer["text"]


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("shop__echo", {"arguments": {"text": 5}}, 400, "tool_arguments_invalid"),
        ("shop__other", {}, 404, "tool_not_found"),
        ("shop__none", {}, 404, "tool_not_found"),
        ("gone__x", {}, 403, "tool_quarantined"),
        ("sqll", {}, 404, "tool_not_found"),
        ("sql", {"arguments": {}}, 400, "tool_arguments_invalid"),
        ("sql", {"arguments": []}, 400, "invalid_type"),
    ],
)
def test_errors(served: Running, name: str, body: Any, status: int, code: str) -> None:
    reply = served.http(headers={"authorization": "Bearer first"}).post(f"/v1/tools/{name}", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text


def test_another_key_has_other_tools(served: Running) -> None:
    http = served.http(headers={"authorization": "Bearer second"})
    assert [one["name"] for one in http.get("/v1/tools").json()["data"]] == OWN
    assert http.post("/v1/tools/shop__echo", json={}).status_code == 404
    assert served.http().post("/v1/mcp", json={}).status_code == 401


def with_client(
    served: Running, key: str, work: Callable[[Client], Coroutine[Any, Any, Any]], mode: str
) -> Any:
    async def run() -> Any:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=30) as http:
            transport = streamable_http_client(f"{served.url}/v1/mcp", http_client=http)
            async with Client(transport, mode=mode) as client:
                return await work(client)

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_over_mcp(served: Running, mode: str) -> None:
    async def work(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [*OWN, "shop__echo"]
        assert (await client.call_tool("shop__echo", {"text": "hi"})).content[0].text == "echo hi"  # type: ignore[union-attr]
        rows = await client.call_tool("sql", {"sql": "SELECT count(*) AS n FROM people"})
        assert json.loads(rows.content[0].text) == [{"n": 2}]  # type: ignore[union-attr]
        wrong = await client.call_tool("shop__echo", {"text": 5})
        assert wrong.is_error
        with pytest.raises(Exception, match="no tool 'nothing'"):
            await client.call_tool("nothing", {})

    with_client(served, "first", work, mode)

    async def other(client: Client) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    assert with_client(served, "second", other, mode) == OWN


def test_bodies_that_are_no_messages(served: Running) -> None:
    http = served.http(
        headers={"authorization": "Bearer first", "accept": "application/json, text/event-stream"}
    )
    for body in (b"", b"nothing", b"[]", b"{}", b'{"jsonrpc":"2.0"}', b"[" * 100_000, b"x" * 5_000_000):
        reply = http.post("/v1/mcp", content=body, headers={"content-type": "application/json"})
        assert 400 <= reply.status_code < 500, (body[:20], reply.status_code)
    assert http.get("/v1/mcp").status_code == 405
    other = http.post("/v1/mcp", json={}, headers={"origin": "http://evil.example"})
    assert other.status_code == 403


def test_without_servers_of_tools(server: Running) -> None:
    listed = server.http().get("/v1/tools").json()
    assert [one["name"] for one in listed["data"]] == ["models", "chat", "embed"]
    assert listed["servers"] == []
