"""What is collected of whom, what never is, and how it is given back or deleted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fake import FakeModel
from in_process import running_server
from learning import ask, learning_server, settled

from headrace.adapt.schema import adapt_file, open_adapt
from headrace.adapt.traffic import collector
from headrace.adapt.traffic.examples import ExampleStore
from headrace.api.app import create_app
from headrace.chat.messages import Message
from headrace.config.adapt_settings import read_adapt
from headrace.config.sources import load_settings
from headrace.errors import UsageError
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ChatRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.keys import KeyLimits


@pytest.fixture(scope="module")
def embed() -> Iterator[Any]:
    model = load_model("embed", EngineOptions(threads=1))
    yield model
    model.close()


def test_requests_are_kept_with_cost_outcome_and_without_personal_data(tmp_path: Path, embed: Any) -> None:
    with learning_server(tmp_path, lambda text: f"mail {text}", embed) as (server, _, store):
        reply = ask(server, "write to ann@example.org or +49 170 1234567", system="Today is 2026-11-25.")
        assert "ann@example.org" in reply.text  # the client sees what it always sees
        [kept] = settled(store, 1)
        assert kept["answer"].count("<EMAIL_ADDRESS_1>") == 1 == kept["question"].count("<EMAIL_ADDRESS_1>")
        assert kept["nano_usd"] == 100 * 2000 + 5 * 10_000 and kept["target"] == kept["model"] == "large"
        assert (kept["outcome"], kept["reply_id"]) == ("ok", reply.json()["id"])
        ask(server, "write to ann@example.org or +49 170 1234567", system="Today is 2027-01-01.")
        first, second = settled(store, 2)
        assert (first["was_repeated"], second["was_repeated"]) == (1, 0) and first["task"] == second["task"]
        [task] = store.tasks()
        assert task.template == "Today is <…>." and task.examples == 2 and task.nano_usd == 500_000
    data = b"".join(one.read_bytes() for one in tmp_path.glob("store-adapt*"))
    assert b"ann@example" not in data and b"1234567" not in data
    assert adapt_file(tmp_path / "store.sqlite3").stat().st_mode & 0o077 == 0


def test_names_are_found_by_the_tagger(tmp_path: Path, embed: Any) -> None:
    tagger = load_model("tagger", EngineOptions(threads=1))
    with learning_server(tmp_path, str, embed, tagger, detector="tagger") as (server, _, store):
        ask(server, "Please call Barack Obama in the White House about the meeting in Berlin.")
        [kept] = settled(store, 1)
        assert "Obama" not in json.dumps(kept) and "<PERSON_1>" in kept["question"]
    tagger.close()


def test_what_came_too_fast_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_WAITING", 4)
    database = open_adapt(tmp_path / "store.sqlite3")
    store, settings = (
        ExampleStore(database),
        read_adapt({"enabled": True, "keys": ["*"], "detector": "patterns"}),
    )

    async def put() -> None:
        made = collector.Collector(store, settings, cast(ModelRunner, None))  # patterns need no model
        for number in range(7):
            made.put(pair(f"r-{number}"))
        await made.close()

    asyncio.run(put())
    assert len(store.export()) == 4 and store.dropped() == {collector.TOO_FAST: 3}
    database.close()


def pair(id: str) -> collector.TrafficPair:
    asked = ChatRequest(id=id, messages=(Message("user", f"question {id}"),))
    known: dict[str, Any] = {"endpoint": "/v1/chat/completions", "model": "m", "target": "m", "nano_usd": 1}
    call = CallContext(request_id=id, account=Account("", KeyLimits()))
    return collector.TrafficPair(
        request=asked,
        call=call,
        answer="a",
        outcome="ok",
        total_s=1.0,
        prompt_tokens=1,
        completion_tokens=1,
        **known,
    )


def test_nothing_is_kept_of_those_who_have_not_agreed(tmp_path: Path, embed: Any) -> None:
    keys = {"api_key": ["sk-ann", "sk-eve"]}
    with learning_server(tmp_path, str, embed, keys=["key 1"], **keys) as (server, _, store):
        for key in ("sk-eve", "sk-ann"):
            ask(server, f"asked by {key}", headers={"authorization": f"Bearer {key}"})
        ask(server, "left out", headers={"authorization": "Bearer sk-ann", "cache-control": "no-store"})
        kept = settled(store, 1)
        time.sleep(0.2)
        assert len(store.export()) == len(kept) == 1
        assert {one["key_name"] for one in kept} == {"key 1"}


def test_off_there_is_no_file_and_no_handler(tmp_path: Path) -> None:
    model = FakeModel()
    model.engine.go.set()
    with running_server(model, store=str(tmp_path / "store.sqlite3")) as server:
        reply = server.http().post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        )
        assert reply.status_code == 200
        refused = server.http().post("/v1/feedback", json={"id": reply.json()["id"], "score": 1})
        assert refused.status_code == 404 and "[adapt]" in refused.json()["error"]["message"]
    assert not list(tmp_path.glob("*adapt*"))


def test_settings_say_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"adapt\.keys"):
        read_adapt({"enabled": True})
    with pytest.raises(UsageError, match=r"unknown 'sampel'.*sample"):
        read_adapt({"sampel": 1})
    with pytest.raises(UsageError, match="in 'a' and in 'b'"):
        read_adapt({"teams": {"a": ["x"], "b": ["x"]}})
    with pytest.raises(UsageError, match=r"adapt\.detector is 'tagger', which is not served"):
        create_app(
            FakeModel(), load_settings({"adapt": {"enabled": True, "keys": ["*"]}}, environ={}, folders=[])
        )
    found = read_adapt({"teams": {"red": ["ann", "bob"]}, "keys": ["ann"]})
    assert found.group_of("ann") == found.group_of("bob") != found.group_of("eve")
    assert found.collects("ann") and not found.collects("bob") and not found.collects("")


def test_feedback_is_of_ones_own_replies_and_bounded(
    tmp_path: Path, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"api_key": ["sk-ann", "sk-eve"]}
    with learning_server(tmp_path, str, embed, **keys) as (server, _, store):
        ann, eve = ({"authorization": f"Bearer {key}"} for key in ("sk-ann", "sk-eve"))
        reply = ask(server, "first", headers=ann)

        def give(headers: Any, **body: Any) -> Any:
            return server.http().post(
                "/v1/feedback", json={"id": reply.json()["id"], **body}, headers=headers
            )

        given = give(ann, score=0, correction="mail ann@example.org")  # at once: it waits for the example
        assert given.status_code == 200 and given.json()["object"] == "feedback"
        [kept] = store.export()
        assert kept["score"] == 0 and kept["correction"] == "mail <EMAIL_ADDRESS_1>"
        assert give(eve, score=1).status_code == 404
        assert give(ann).status_code == 400 and give(ann, score=2).status_code == 400
        by_header = {"id": reply.headers["x-request-id"], "accepted": True}
        assert server.http().post("/v1/feedback", json=by_header, headers=ann).status_code == 200
        assert store.export()[0]["is_accepted"] == 1 and store.export()[0]["correction"] is None
        monkeypatch.setattr("headrace.adapt.traffic.examples.FEEDBACK_PER_DAY", 1)
        flooded = give(ann, score=1)
        assert flooded.status_code == 429 and int(flooded.headers["retry-after"]) > 0

        async def searched(*given: Any) -> None:
            raise AssertionError("what is not taken needs no search, which keeps others waiting")

        monkeypatch.setattr(collector.Collector, "redacted", searched)
        assert give(eve, correction="x").status_code == 404
        assert give(ann, correction="x").status_code == 429


def test_export_forget_and_retention(tmp_path: Path, embed: Any) -> None:
    keys = {"api_key": ["sk-ann", "sk-eve"]}
    with learning_server(tmp_path, str, embed, **keys) as (server, _, store):
        for key, text in (("sk-ann", "alpha"), ("sk-eve", "beta"), ("sk-ann", "gamma")):
            ask(server, text, headers={"authorization": f"Bearer {key}"})
        settled(store, 3)
        names = [one["key_name"] for one in store.export()]
        assert [one["question"] for one in store.export(names[0])] == ["alpha", "gamma"]
        assert store.forget(names[0]).examples == 2 and [one["question"] for one in store.export()] == [
            "beta"
        ]
        data = b"".join(one.read_bytes() for one in tmp_path.glob("store-adapt*"))
        assert b"alpha" not in data and b"beta" in data
        assert len(store.tasks()) == 1  # that of the other key
        store.trim(time.time() + 1, 10)
        assert not store.export() and not store.tasks()


WRITER = """
import sys, time
from pathlib import Path
from headrace.adapt.traffic.examples import Example, ExampleStore
from headrace.adapt.traffic.fingerprint import Fingerprint
from headrace.adapt.schema import open_adapt
store = ExampleStore(open_adapt(Path(sys.argv[1])))
for number in range(100_000):
    task = f"t-{number % 7}"
    print_ = Fingerprint(id=task, group="g", endpoint="", template=f"{number % 7}", tools=(), form="")
    store.add(print_, Example(reply_id=f"{sys.argv[2]}-{number}", request_id="r", task=task, key_name="k",
        at_s=time.time(), model="m", target="m", messages=b"[]", question=f"q {number}",
        question_digest=b"%d" % number, answer="a", outcome="ok", nano_usd=1, first_token_s=None, total_s=1.0,
        prompt_tokens=1, completion_tokens=1), retention_s=1e9, max_of_key=50)
    print(number, flush=True)
"""


def test_kill_while_it_writes_leaves_whole_examples(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite3"
    for round in range(4):
        arguments = [sys.executable, "-c", WRITER, str(store), str(round)]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(20 + 31 * round)]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        database = open_adapt(store)
        assert database.damage() == []
        [(orphans,)] = database.query(
            "SELECT count(*) FROM examples WHERE task NOT IN (SELECT id FROM tasks)"
        )
        last = int(lines[-1])
        rows = database.query("SELECT reply_id FROM examples WHERE reply_id LIKE ?", (f"{round}-%",))
        numbers = sorted(int(str(name).partition("-")[2]) for (name,) in rows)
        # It has written on until it was killed, and may have deleted what was older than 50 others.
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) and numbers[-1] >= last
        assert orphans == 0 and (numbers[0] == 0 or len(numbers) >= 50)
        database.close()


def test_commands(tmp_path: Path, embed: Any, command: Any) -> None:
    with learning_server(tmp_path, str, embed) as (server, _, store):
        for number in range(3):
            ask(server, f"where is parcel {number}", system="Sort parcels.")
        settled(store, 3)
    flags = ["--store", str(tmp_path / "store.sqlite3")]
    status = json.loads(command("status", "--json", *flags))
    assert (status["examples"], status["tasks"], status["enabled"]) == (3, 1, False)
    [task] = json.loads(command("tasks", "--json", *flags))
    assert task["examples"] == 3 and "parcel" in task["name"] and task["groups"] == []
    assert "no students and no decisions yet" in command("history", task["id"], *flags)
    command("tasks", "--rename", task["id"][:6], "parcels", *flags)
    assert json.loads(command("tasks", "parcels", "--json", *flags))[0]["name"] == "parcels"
    absent = tmp_path / "absent.sqlite3"
    assert "there is no file" in command("status", "--store", str(absent))
    file = tmp_path / "out.jsonl"
    command("export", str(file), *flags)
    records = [json.loads(line)["record"] for line in file.read_text().splitlines()]
    assert records == ["example"] * 3 + ["task"] and file.stat().st_mode & 0o077 == 0
    assert json.loads(command("forget", "--all", "--json", *flags)) == {"forgotten": 3, "students": []}
    assert command("forget", "--all", *flags) == "nothing is deleted: no example is kept\n"
    assert "no examples of a key named 'anne'" in command("forget", "--key", "anne", *flags)
    assert "no reply 'x' is kept" in command("forget", "--reply", "x", *flags)
    assert "no tasks yet" in command("tasks", *flags) and command("tasks", "--json", *flags) == "[]\n"
    command("forget", *flags, code=2)
    command("tasks", "nothing", *flags, code=1)
