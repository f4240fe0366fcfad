"""A student before a model of this machine that is served as it is, without an entry of [models]."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from in_process import server_of
from learning import fill, settled, words

from headrace.adapt.decisions.promotion import start_shadow
from headrace.adapt.decisions.shadow import catch_up
from headrace.adapt.schema import open_adapt
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.config.adapt_settings import AdaptSettings
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.database import Database

THINGS = [
    f"{size} {color} {what}"
    for size in ("big", "old")
    for color in ("red", "blue", "green")
    for what in ("house", "boat", "lake")
]
LABELS = ["water", "land", "sky"]


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    loaded = [load_model(name, EngineOptions(threads=1)) for name in ("mini", "embed")]
    yield loaded
    for one in loaded:
        one.close()


def sort(server: Any, text: str, **more: Any) -> Any:
    body = {
        "messages": [{"role": "system", "content": "Sort it."}, {"role": "user", "content": text}],
        "temperature": 0,
        "structured_outputs": {"choice": LABELS},
        **more,
    }
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply


def answer_of(reply: Any) -> dict[str, Any]:
    """What does not differ from one request to the next."""
    return {name: value for name, value in reply.json().items() if name not in ("id", "created", "usage")}


def target_of(reply: Any) -> str | None:
    return reply.headers.get("x-headrace-target")


def audited(store: Path) -> int:
    """How many answers of students the model was asked for, too."""
    with closing(Database(store)) as main:
        [(found,)] = main.query("SELECT coalesce(max(audited), 0) FROM route_gates")
    return int(found)  # type: ignore[call-overload]


def until(ask: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    """What is found as soon as it is so."""
    for _ in range(2400):
        if is_so(found := ask()):
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_student_answers_before_a_model_that_is_served_as_it_is(
    tmp_path: Path, models: Any, command: Any
) -> None:
    table = {"enabled": True, "keys": ["*"], "detector": "patterns", "margin": 0.2}
    flags = {"store": str(tmp_path / "store.sqlite3"), "adapt": table, "node_usd_per_hour": 3600.0}
    with server_of(*models, **flags) as server, closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        store, http = ExampleStore(database), server.http()
        (tmp_path / "headrace.toml").write_text(
            f'store = "{tmp_path}/store.sqlite3"\n[adapt]\nenabled = true\nkeys = ["*"]\nmargin = 0.2\n'
        )
        first = {text: answer_of(sort(server, text)) for text in THINGS}
        assert first[THINGS[0]]["model"] == "mini"
        asked = itertools.cycle(THINGS)

        def send(count: int) -> None:
            texts = list(itertools.islice(asked, count))
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda text: sort(server, text).json()["choices"], texts))
            assert found == [first[text]["choices"] for text in texts]

        send(60)
        [task] = {one["task"] for one in settled(store, 60 + len(THINGS))}
        trained = http.post("/v1/adapt/train", json={"task": task})
        assert trained.status_code == 200, trained.text
        assert http.post("/v1/adapt/shadow", json={"task": task}).status_code == 200
        for _ in range(60):
            if Registry(database).students("ready"):
                break
            send(20)
            time.sleep(0.3)
        [prospect] = http.get("/v1/adapt/status").json()["students"]
        assert prospect["state"] == "ready" and prospect["saves_usd_per_month"] > 0  # by the machine's price

        promoted = http.post("/v1/adapt/promote", json={"task": task, "share": 1, "audit": 1})
        assert promoted.status_code == 200, promoted.text
        assert promoted.json()["route"] == "mini"
        student = f"adapt/{promoted.json()['student']}"
        reply = until(lambda: sort(server, THINGS[0]), lambda found: target_of(found) == student)
        said = reply.json()
        assert said["model"] == "mini" and said["choices"] == first[THINGS[0]]["choices"]
        other = sort(server, "a small grey stone", model="mini")  # it is not sure: the model answers
        assert other.headers["x-headrace-target"] == "mini"
        # Another task, and what shows more than an answer, are the model's.
        assert (
            "x-headrace-target"
            not in sort(server, THINGS[0], structured_outputs={"choice": LABELS[:2]}).headers
        )
        shown = sort(server, THINGS[0], logprobs=True)
        assert "x-headrace-target" not in shown.headers and shown.json()["choices"][0]["logprobs"]["content"]
        streamed = sort(server, THINGS[1], stream=True).text
        assert first[THINGS[1]]["choices"][0]["message"]["content"] in "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            for line in streamed.splitlines()
            if line.startswith("data: {") and json.loads(line[6:])["choices"]
        )
        # The model was asked, too, and says the same.
        until(lambda: audited(tmp_path / "store.sqlite3"), lambda found: bool(found))
        assert http.post("/v1/adapt/rollback", json={"task": task}).status_code == 200
        reply = until(lambda: sort(server, THINGS[0]), lambda found: target_of(found) is None)
        assert reply.json()["choices"] == first[THINGS[0]]["choices"]  # as before, to the byte
        again = sort(server, "a small grey stone", model="mini")
        assert again.json()["choices"] == other.json()["choices"]
        assert "was rolled back" in command("promote", task, code=1)


def test_a_command_promotes_before_a_model_of_this_machine(tmp_path: Path, command: Any) -> None:
    for model, code in (("mini", 0), ("gone-model", 1)):
        folder = tmp_path / f"of-{model}"
        folder.mkdir()
        (tmp_path / "headrace.toml").write_text(f'store = "{folder}/store.sqlite3"\n')
        with closing(open_adapt(folder / "store.sqlite3")) as database:
            store = ExampleStore(database)
            task = fill(store, 250, model=model, target=model)
            train(store, task, AdaptSettings(margin=0.05), words)
            fill(store, 400, first=5000, model=model, target=model)
            assert catch_up(store, start_shadow(store, task), words) == "ready"
        said = command("promote", task, "--json", code=code)
        if code:
            assert "'gone-model'" in said and "served here" in said
        else:
            assert json.loads(said)["route"] == "mini"
