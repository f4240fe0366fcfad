"""/v1/adapt/*: the same objects as the commands print, for keys with the scope admin."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fake import FakeModel
from in_process import server_of
from learning import ask, fill, learning_server
from starlette.requests import Request

from headrace.adapt.export import everything
from headrace.adapt.schema import open_adapt
from headrace.adapt.served_actions import ServedActions
from headrace.adapt.traffic.examples import ExampleStore
from headrace.api.adapt.actions import _is_of_this_machine
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import StoreBusy
from headrace.gateway.gate import GateStore
from headrace.inference.model_runner import ModelRunner
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.database import Database

ADMIN = {"authorization": "Bearer admin-key-0123456789"}


@pytest.fixture(scope="module")
def embed() -> Iterator[Any]:
    model = load_model("embed", EngineOptions(threads=1))
    yield model
    model.close()


def test_the_loop_over_http_is_that_of_the_commands(tmp_path: Path, embed: Any, command: Any) -> None:
    with learning_server(tmp_path, lambda text: text, embed, margin=0.05) as (server, provider, store):
        (tmp_path / "headrace.toml").write_text(
            f'store = "{tmp_path}/store.sqlite3"\n[adapt]\nenabled = true\nkeys = ["*"]\nmargin = 0.05\n'
            f'[providers.work]\ndialect = "openai_chat"\nbase_url = "{provider.url}"\n'
            '[models.large]\nprovider = "work"\nmodel = "far-1"\n'
        )
        http = server.http()

        def post(action: str, code: int = 200, **body: Any) -> Any:
            reply = http.post(f"/v1/adapt/{action}", json=body, timeout=60)
            assert reply.status_code == code, reply.text
            return reply.json()

        task = fill(store, 250)
        assert http.get("/v1/adapt/status").json() == json.loads(command("status", "--json"))
        [found] = http.get("/v1/adapt/tasks").json()["data"]
        assert found["id"] == task and found["examples"] == 250
        [found] = post("tasks")["data"]
        assert found["groups"] and [found] == json.loads(command("tasks", "--json"))
        [named] = post("rename", task=task, name="  sorting   mail ")["data"]
        assert named["name"] == "sorting mail" and named["groups"] == found["groups"]
        assert post("rename", 400, task=task, name="a\x00b")["error"]["param"] == "name"
        told = post("diagnose", task="sorting mail")
        assert told == json.loads(command("diagnose", task, "--json")) and told["rungs"]
        assert "no tasks are named" in post("diagnose", 400, task="t-none")["error"]["message"]
        made = post("train", task=task)
        assert made["task"] == task and made["card"]["lessons"] > 100
        assert post("shadow", task=task)["standing"] == "open"
        fill(store, 300, first=1000)
        said = post("shadow", task=task)
        assert said["standing"] == "ready" and said["prospect"]["student"] == made["student"]
        promoted = post("promote", task=task, share=0.25)
        assert promoted == {"task": task, "student": made["student"], "route": "large", "share": 0.25}
        [shown] = http.get("/v1/adapt/status").json()["students"]
        assert shown["state"] == "promoted"
        told = http.get("/v1/adapt/history", params={"task": "sorting mail"}).json()
        assert told == json.loads(command("history", task, "--json"))
        [student] = told["students"]
        assert (student["id"], student["state"], student["share"]) == (made["student"], "promoted", 0.25)
        evidence = student["evidence"]
        assert evidence["capital"] >= evidence["needed"] == pytest.approx(20)
        assert -0.05 < evidence["lower"] < evidence["difference"] < evidence["upper"]
        assert [one["what"] for one in told["decisions"]] == ["promoted", "ready", "shadow", "trained"]
        assert f"{made['student']} promoted by a client without a key over HTTP: " in command("history", task)
        back = post("rollback", task=task)
        assert back["student"] == made["student"]
        last = back["decisions"][-1]
        assert (last["what"], last["who"]) == ("rolled_back", "a client without a key over HTTP")
        assert "no promoted student" in post("rollback", 400, task=task)["error"]["message"]
        lines = http.get("/v1/adapt/export").text.splitlines()
        assert [json.loads(one) for one in lines] == everything(store)
        assert http.get("/v1/adapt/export", params={"key": "nobody"}).text == ""
        assert post("forget", 400)["error"]["param"] == "key"
        assert post("forget", key="k") == {"forgotten": 550, "students": [made["student"]]}
        assert not store.export()


def test_a_key_without_the_scope_sees_and_changes_nothing(tmp_path: Path, embed: Any) -> None:
    keys = {"api_key": ("plain-key-0123456789",), "admin_api_key": ("admin-key-0123456789",)}
    with learning_server(tmp_path, lambda text: text, embed, **keys) as (server, _, store):
        fill(store, 3)
        http, plain = server.http(), {"authorization": "Bearer plain-key-0123456789"}
        for path in ("status", "tasks", "export", "history?task=t"):
            assert http.get(f"/v1/adapt/{path}", headers=plain).status_code == 403
            assert http.get(f"/v1/adapt/{path}", headers=ADMIN).status_code == 200
        for path in ("tasks", "rename", "diagnose", "train", "shadow", "promote", "rollback", "forget"):
            for headers, code in ((plain, 403), ({}, 401)):
                assert http.post(f"/v1/adapt/{path}", json={"all": True}, headers=headers).status_code == code
        assert len(store.export()) == 3


@pytest.mark.parametrize(
    ("client", "is_here"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1), True),
        (None, True),
        (("192.0.2.7", 1), False),
        (("x", 1), False),
    ],
)
def test_without_keys_only_this_machine_is_answered(client: Any, is_here: Any) -> None:
    assert _is_of_this_machine(Request({"type": "http", "headers": [], "client": client})) is is_here


@pytest.mark.parametrize(
    ("name", "value", "is_here"),
    [
        ("host", "localhost:8080", True),
        ("host", "[::1]:8080", True),
        ("host", "evil.example:8080", False),
        ("host", "[", False),
        ("x-forwarded-for", "203.0.113.5", False),
        ("x-real-ip", "127.0.0.1", False),
        ("via", "1.1 proxy", False),
    ],
)
def test_neither_pages_nor_proxies_of_this_machine_are_answered(name: str, value: str, is_here: bool) -> None:
    """Whose requests come from here, too: by a name of their own for this machine, or for others."""
    headers = [(name.encode(), value.encode())]
    scope = {"type": "http", "headers": headers, "client": ("127.0.0.1", 5)}
    assert _is_of_this_machine(Request(scope)) is is_here


def test_without_the_table_it_says_how() -> None:
    with server_of(FakeModel()) as server:
        reply = server.http().get("/v1/adapt/status")
        assert reply.status_code == 501 and "[adapt]" in reply.json()["error"]["message"]


def test_a_busy_store_does_not_end_the_looking_after_students(
    tmp_path: Path, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a rollback has no effect in the running server."""
    looked, again = list[object](), threading.Event()

    def is_training(database: object) -> bool:
        looked.append(database)
        if len(looked) > 1:
            again.set()
        raise StoreBusy("the store is busy", reason="store")

    monkeypatch.setattr("headrace.adapt.adapting.is_training", is_training)
    with learning_server(tmp_path, lambda text: str(again.wait(20)), embed) as (server, _, _store):
        assert ask(server, "hello").json()["choices"][0]["message"]["content"] == "True"


def test_one_action_computes_at_a_time_also_when_its_client_has_left() -> None:
    database = open_adapt(None)
    none = cast("ModelRunner", None)
    began, goes_on, done = threading.Event(), threading.Event(), list[str]()

    def first(embed: object) -> None:
        began.set()
        goes_on.wait(20)
        done.append("first")

    async def both() -> None:
        actions = ServedActions(
            ExampleStore(database), AdaptSettings(), GateStore(Database(None)), none, None
        )
        leaves = asyncio.ensure_future(actions._compute(first))
        await asyncio.to_thread(began.wait, 20)
        leaves.cancel()
        second = asyncio.ensure_future(actions._compute(lambda embed: done.append("second")))
        await asyncio.wait([second], timeout=0.2)
        goes_on.set()
        await second
        actions.close()

    asyncio.run(both())
    assert done == ["first", "second"]
    database.close()
