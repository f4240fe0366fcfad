"""Students that write: an adapter on a small model is taught, judged, promoted, served and taken back."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from learning import ask, fill, learning_server, words

from headrace.adapt.fine_tuning.order import MODULE, AdapterPlan
from headrace.adapt.retention import sweep
from headrace.adapt.schema import adapt_file, open_adapt
from headrace.adapt.students.checkpoints import kept_training, note_live_traffic
from headrace.adapt.students.ladder import task_examples
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.rungs.lora import lessons_of, why_not
from headrace.adapt.students.rungs.served import remove_adapters
from headrace.adapt.students.rungs.teaching import students_folder
from headrace.adapt.students.training import train
from headrace.adapt.students.training_process import TrainingEnded, TrainingProcess
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.weights.hub.resolver import resolve
from tiny import tiny_model

LIBRARIES = ("torch", "transformers", "peft")  # which take seconds to import: the training does
needs_train = pytest.mark.skipif(not all(map(find_spec, LIBRARIES)), reason="needs headrace[train]")
ANSWER = "pong!"
SYSTEM = "Answer."
SETTINGS = AdaptSettings(margin=0.2, base="llama3")
LEARNING = AdapterPlan(epochs=8, batch_size=4, rate=0.02)


def asked(seed: int, count: int) -> list[str]:
    """Questions of letters, no two alike."""
    drawn = random.Random(seed)
    return ["".join(drawn.choice("bcdfghjklmnpqrstvwxz") for _ in range(8)) for _ in range(count)]


def collected(store: ExampleStore, count: int, seed: int = 0, answer: str = ANSWER) -> str:
    """Examples with whole conversations."""
    task = ""
    for number, question in enumerate(asked(seed, count)):
        said = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        more = {"messages": json.dumps(said).encode(), "question": question, "answer": answer}
        task = fill(store, 1, first=1000 * seed + number, key="", **more)
    return task


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base"), "llama3")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        yield ExampleStore(database)


def until(happened: Callable[[], Any]) -> Any:
    for _ in range(6000):
        if found := happened():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_without_a_base_or_the_extra_the_rung_is_skipped_by_name(
    store: ExampleStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = collected(store, 60)
    with pytest.raises(InvalidRequest, match=r"lora is not tried: adapt.base names no model"):
        train(store, task, AdaptSettings(margin=0.2), words)
    missing = ("torch_that_is_not_there",)
    monkeypatch.setattr(
        "headrace.adapt.students.rungs.lora.LIBRARIES", {"lora": missing, "distilled": missing}
    )
    with pytest.raises(InvalidRequest, match=r"needs headrace\[train\] \(torch_that_is_not_there"):
        train(store, task, SETTINGS, words, folders=ModelFolders(base=str(base)))
    assert "needs headrace[train]" in why_not("mini")
    other = fill(store, 250)  # one that can choose does not need it; its card says that
    store.database.execute("DELETE FROM examples WHERE answer = ?", (ANSWER,))
    _, card = train(store, other, AdaptSettings(margin=0.05), words)
    assert card.rung != "lora" and "adapt.base" in card.skipped["lora"]


def test_what_is_learned_by_writing_is_text(store: ExampleStore) -> None:
    """Neither what stands for personal data, nor conversations with tools or images."""
    task = collected(store, 20)
    collected(store, 5, seed=1, answer="write to <EMAIL_ADDRESS_1>")
    said = [{"role": "tool", "content": "x"}]
    fill(store, 5, first=9000, key="", messages=json.dumps(said).encode(), answer="other")
    embed_examples(store.database, SETTINGS.encoder, words)
    parts = lessons_of(task_examples(store.database, task, SETTINGS.encoder))
    assert {one.answer for one in (*parts.lessons, *parts.held_out)} == {ANSWER}
    assert len(parts.lessons) == 12 and len(parts.held_out) == 8
    assert max(one.at_s for one in parts.lessons) < min(one.at_s for one in parts.held_out)


@needs_train
@pytest.mark.soak
def test_a_training_of_an_adapter_waits_for_clients_and_is_killed(
    tmp_path: Path, store: ExampleStore, base: Path
) -> None:
    """Between two steps; the adapter's process ends with its parent, and the next training ends the work."""
    database, file = store.database, adapt_file(tmp_path / "store.sqlite3")
    task = collected(store, 600)
    embed_examples(database, SETTINGS.encoder, words)

    def stage() -> str:
        kept = kept_training(database, task)
        return "" if kept is None else kept.stage

    process = TrainingProcess(file, task, SETTINGS, ModelFolders(base=str(base)), "lora")
    until(lambda: stage().startswith("lora step"))
    seen, same = "", 0
    while same < 10:  # it may end a step that it has begun
        note_live_traffic(database)
        same = same + 1 if stage() == seen else 0
        seen = stage()
        time.sleep(0.2)
    kept = kept_training(database, task)
    children = psutil.Process(process.pid).children(recursive=True)
    assert kept is not None and [one for one in children if MODULE in one.cmdline()]
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TrainingEnded, match="SIGKILL"):
        process.result()
    psutil.wait_procs(children, timeout=60)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in children)
    assert kept_training(database, task) == kept and (students_folder(file) / kept.student).is_dir()
    try:
        name, card = TrainingProcess(file, task, SETTINGS, ModelFolders(base=str(base)), "lora").result()
        assert name == kept.student and card.rung == "lora"
    except InvalidRequest as error:  # such a model learns little of so few steps
        assert "lora: nothing is certified" in error.message
        assert not (students_folder(file) / kept.student).exists()
    assert not kept_training(database, task) and database.damage() == []


@needs_train
@pytest.mark.soak
def test_an_adapter_that_learns_one_answer_keeps_no_canary(store: ExampleStore) -> None:
    """`nano` had kept 5 of 8 with rank 16: what else is to be learned is known after an epoch."""
    task, folders = collected(store, 300), ModelFolders(base=str(resolve("nano", offline=True)))
    settings = AdaptSettings(margin=0.2, base="nano")
    _, card = train(store, task, settings, words, folders=folders, rung="lora")
    assert card.exposed == [] and card.rungs["lora"][1] > 0.9


@needs_train
@pytest.mark.nightly
def test_a_student_that_writes_from_its_lessons_to_its_rollback(
    tmp_path: Path, store: ExampleStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.adapt.students.rungs.teaching.plan_of", lambda lessons, longest: LEARNING)
    models = [load_model("embed", EngineOptions(threads=1)), load_model(str(base), EngineOptions(threads=1))]
    flags = {"margin": 0.2, "base": "llama3"}
    known = [ANSWER]
    with learning_server(tmp_path, lambda text: known[0], *models, **flags) as (server, _, _store):
        http = server.http()
        for question in asked(5, 2):  # the task is that of real requests
            ask(server, question, SYSTEM)
        task = until(lambda: store.tasks())[0].id
        until(lambda: len(store.export()) == 2)
        collected(store, 60)
        store.database.execute("UPDATE examples SET task = ?", (task,))

        name, card = train(store, task, SETTINGS, words, folders=ModelFolders(base=str(base)))
        assert card.rung == "lora" and card.share > 0.5 and card.rungs["lora"][1] > 0.9, card
        assert card.keys and len(card.data_sha256) == 64 and card.exposed == []
        folder = students_folder(adapt_file(tmp_path / "store.sqlite3")) / name
        assert [one.name for one in folder.iterdir()] == ["adapter"]  # no text of a user is left
        assert http.post("/v1/adapt/shadow", json={"task": task}).status_code == 200
        for seed in range(6, 12):
            if Registry(store.database).students("ready"):
                break
            for question in asked(seed, 20):
                ask(server, question, SYSTEM)
        row = until(lambda: Registry(store.database).students("ready"))[0]
        assert row.id == name
        refused = http.post(
            "/v1/chat/completions",
            json={"model": f"llama3:adapt-{name}", "messages": [{"role": "user", "content": "x"}]},
        )
        assert refused.status_code == 404
        assert name not in http.get("/v1/models").text

        promoted = http.post("/v1/adapt/promote", json={"task": task, "share": 1, "audit": 1})
        assert promoted.status_code == 200, promoted.text
        fresh = iter(asked(20, 1000))

        def target() -> str:
            reply = ask(server, next(fresh), SYSTEM)
            by = str(reply.headers["x-headrace-target"])
            said = reply.json()["choices"][0]["message"]["content"]
            assert by != "large" or said == known[0]
            return by

        until(lambda: target() == f"adapt/{name}")
        sweep(store, SETTINGS)  # an adapter is retired when all of its lessons are too old
        assert Registry(store.database).student(task, "promoted").id == name
        known[0] = "peng!"  # traffic drifts: audits find it, and roll the student back
        until(lambda: target() and Registry(store.database).students("rolled_back"))
        until(lambda: target() == "large")
        store.database.execute("UPDATE students SET state = 'shadow'")
        sweep(store, SETTINGS, time.time() + SETTINGS.retention)
        assert Registry(store.database).student(task, "replaced").id == name and not folder.exists()
        assert store.forget(None).students == [name] and remove_adapters(store.database) == []
    for one in models:
        one.close()
