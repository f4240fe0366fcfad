"""`headrace.Agent` and `headrace agent`: tools of Python, SQL and MCP servers, approval, runs that go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedModel
from tool_servers import GatewayMaker, raw

from headrace import Agent
from headrace.cli.main import main
from headrace.config.sources import load_settings
from headrace.errors import InvalidRequest, UsageError


def script(*said: Any) -> ScriptedModel:
    """Says one after the other; which one is told by the results that are there."""

    def next_one(request: Any) -> Any:
        results = sum(one.role == "tool" for one in request.messages)
        return said[min(results, len(said) - 1)]

    return ScriptedModel(next_one)


def test_functions_and_sql(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("name,age\nAnn,30\nBob,40\n")
    settings = load_settings({"datasets": {"people": f"file:{tmp_path}/people.csv"}}, environ={}, folders=[])
    rung: list[tuple[str, int]] = []

    def ring(name: str, times: int = 1) -> str:
        """Ring at somebody's door."""
        rung.append((name, times))
        return f"rang {times} times"

    async def broken(name: str) -> str:
        raise ValueError(f"no bell for {name}")

    model = script(
        [("sql", {"sql": "SELECT name FROM people ORDER BY age"})],
        [("ring", {"name": "Bob", "times": 2})],
        [("broken", {"name": "Ann"})],
        [("ring", {"name": 5})],
        "Bob was there.",
    )
    with Agent(handler=model, tools=["sql", ring, broken], settings=settings) as agent:
        result = agent.run("Who is there?")
    assert (result.text, result.reason) == ("Bob was there.", "stop")
    assert rung == [("Bob", 2)]
    assert [one.is_error for one in result.calls] == [False, False, True, True]
    assert json.loads(result.calls[0].output) == [{"name": "Ann"}, {"name": "Bob"}]
    assert result.calls[2].output == "ValueError: no bell for Ann"
    use = model.requests[0].tools
    assert use is not None
    [spec] = [one for one in use.callable if one.name == "ring"]
    assert spec.description == "Ring at somebody's door."
    assert dict(spec.parameters)["required"] == ["name"]


def test_an_mcp_server_with_approval_and_a_run_that_goes_on(gateway: GatewayMaker, tmp_path: Path) -> None:
    shop = raw("echo")
    gateway(shop=shop)
    flags: dict[str, Any] = {"mcp": {"shop": shop}, "mcp_lock": str(tmp_path / "headrace.lock")}
    settings = load_settings(flags, environ={}, folders=[])
    said = ([("shop__echo", {"text": "a"})], [("shop__echo", {"text": "b"})], "done")
    store = tmp_path / "store.sqlite3"
    with Agent(handler=script(*said), tools=["mcp:shop/echo"], settings=settings, store=store) as agent:
        first = agent.run("Do it.")
        assert first.reason == "approval" and first.calls == ()
        [(call_id, name, _)] = first.waiting
        assert name == "shop__echo"
    asked: list[Any] = []

    def approve(name: str, arguments: Any) -> bool:
        asked.append(arguments)
        return True

    model = script(*said)
    with Agent(
        handler=model, tools=["mcp:shop/echo"], settings=settings, store=store, approve=approve
    ) as agent:
        result = agent.run("Do it.", run_id=first.run_id, decisions={call_id: "deny"})
        assert result.text == "done" and asked == [{"text": "b"}]
        assert [one.output for one in result.calls] == ["The user has refused this call.", "echo b"]
        assert len(model.requests) == 2  # the first answer was kept
        again = agent.run("Do it.", run_id=first.run_id)
        assert again.text == "done" and len(model.requests) == 2 and again.calls == result.calls
        with pytest.raises(UsageError, match="another task"):
            agent.run("Do something else.", run_id=first.run_id)
    with (
        pytest.raises(UsageError, match="no such tool"),
        Agent(handler=model, tools=["mcp:shop/none"], settings=settings) as agent,
    ):
        agent.run("x")
    for wrong in (["mcp"], [lambda x: x]):
        with pytest.raises(UsageError):
            Agent(handler=model, tools=wrong, settings=settings)
    with pytest.raises(UsageError, match="budget"):
        Agent(handler=model, budget={"stepps": 3})


def test_a_run_does_not_go_on_without_a_tool_that_it_has_called(tmp_path: Path) -> None:
    def ring(name: str) -> str:
        return f"rang at {name}"

    def wait() -> str:
        return "waited"

    store = tmp_path / "store.sqlite3"
    said = ([("ring", {"name": "Bob"})], "done")
    with Agent(handler=script(*said), tools=[ring], store=store, budget={"steps": 1}) as agent:
        run_id = agent.run("x").run_id
    with (
        Agent(handler=script(*said), tools=[wait], store=store) as agent,
        pytest.raises(InvalidRequest, match="calls 'ring', which is none of its tools now"),
    ):
        agent.run("x", run_id=run_id)
    with Agent(handler=script(*said), tools=[ring], store=store) as agent:
        assert agent.run("x", run_id=run_id).text == "done"


def test_the_bundled_model_calls_a_function() -> None:
    """The small model is weak: what is asserted is that its call is one of the tool's schema, and the end."""
    seen: list[str] = []

    def get_weather(city: str) -> str:
        """Weather of a city"""
        seen.append(city)
        return "14 degrees, rain"

    with Agent("mini", tools=[get_weather], budget={"steps": 3, "tokens": 900}) as agent:
        result = agent.run("What is the weather in Berlin?", temperature=0.0)
    assert seen and all(isinstance(city, str) for city in seen)
    assert result.calls[0].output == "14 degrees, rain"
    assert result.usage.prompt_tokens + result.usage.completion_tokens <= 900


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "people.csv").write_text("name\nAnn\n")
    (tmp_path / "headrace.toml").write_text('[datasets]\npeople = "file:people.csv"\n')
    words = ["agent", "run", "list all files", "--tool", "sql", "--steps", "2", "--tokens", "900", "--json"]
    with pytest.raises(SystemExit):
        main(words)
    shown = json.loads(capsys.readouterr().out)
    assert shown["run_id"].startswith("run_") and shown["usage"]["completion_tokens"] > 0
    with pytest.raises(SystemExit) as stop:
        main(["agent", "run", "x", "--tool", "files"])
    assert stop.value.code == 2
    assert "there is no tool 'files'" in capsys.readouterr().err
