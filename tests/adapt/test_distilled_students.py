"""Students all of whose weights have learned: taught, killed, judged, and served as models of no list."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from learning import fill, words
from msgspec.structs import replace
from test_writing_students import ANSWER, SETTINGS, asked, collected, until

from headrace.adapt.fine_tuning.order import MODULE, AdapterNote, AdapterPlan
from headrace.adapt.schema import adapt_file, open_adapt
from headrace.adapt.students.checkpoints import kept_training
from headrace.adapt.students.ladder import task_examples
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.rungs import teaching
from headrace.adapt.students.rungs.folders import ModelFolders, folders_of
from headrace.adapt.students.rungs.lora import lessons_of
from headrace.adapt.students.rungs.teaching import WHOLE, AdapterPlace, is_of_teacher, students_folder, teach
from headrace.adapt.students.rungs.writing import weights_digest
from headrace.adapt.students.training import train
from headrace.adapt.students.training_process import TrainingEnded, TrainingProcess
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.weights.hub.resolver import resolve
from tiny import tiny_model

needs_train = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers"))), reason="needs headrace[train]"
)
LEARNING = AdapterPlan(epochs=10, batch_size=4, rate=0.02)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base"), "llama3")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        yield ExampleStore(database)


def test_without_a_model_or_the_extra_it_is_skipped_by_name(
    store: ExampleStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = collected(store, 60)
    with pytest.raises(InvalidRequest, match=r"distilled is not tried: adapt\.base names no"):
        train(store, task, AdaptSettings(margin=0.2), words, rung="distilled")
    missing = ("torch_that_is_not_there",)
    monkeypatch.setattr(
        "headrace.adapt.students.rungs.lora.LIBRARIES", {"lora": missing, "distilled": missing}
    )
    folders = ModelFolders(student=str(base))
    with pytest.raises(InvalidRequest, match=r"distilled is not tried: needs headrace\[train\] \(torch_that"):
        train(store, task, SETTINGS, words, folders=folders, rung="distilled")


def test_what_answers_today_teaches_what_it_has_said(store: ExampleStore, tmp_path: Path) -> None:
    """A remote model has no probabilities; a correction is nobody's."""

    def weights_of(name: str) -> Path:
        if name == "nowhere":
            raise ModelNotFound("it is a remote model")
        return tmp_path / name

    task = fill(store, 20, target="nowhere")
    settings = replace(SETTINGS, base="mini", student="nano")
    found = folders_of(store, task, settings, weights_of)
    assert found.teacher is None and found.teacher_weights is None
    assert (found.base, found.student) == (str(tmp_path / "mini"), str(tmp_path / "nano"))
    fill(store, 40, first=1000, target="mini")
    found = folders_of(store, task, replace(settings, tagger="nowhere"), weights_of)
    assert found.teacher == "mini" and found.teacher_weights == str(tmp_path / "mini")
    assert found.tagger is None and "remote" in found.unfit["tagger"]
    embed_examples(store.database, SETTINGS.encoder, words)
    one = task_examples(store.database, task, SETTINGS.encoder)[-1]
    assert is_of_teacher(one, "mini") and not is_of_teacher(one, "nano")
    assert not is_of_teacher(replace(one, answer="corrected"), "mini")


@needs_train
@pytest.mark.soak
def test_a_model_learns_answers_and_then_teaches_another(
    store: ExampleStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching, "plan_of", lambda lessons, longest: LEARNING)
    monkeypatch.setattr(teaching, "WHOLE_EPOCHS", LEARNING.epochs)  # of so few lessons
    task, path = collected(store, 60), store.database.path
    assert path is not None
    name, card = train(
        store, task, SETTINGS, words, folders=ModelFolders(student=str(base)), rung="distilled"
    )
    assert card.rung == "distilled" and card.share > 0.5 and card.rungs["distilled"][1] > 0.9, card
    assert card.lineage == {"base": "llama3"} and card.exposed == [] and len(card.data_sha256) == 64
    first = students_folder(path) / name
    assert [one.name for one in first.iterdir()] == [WHOLE]  # no text of a user is left
    row = Registry(store.database).student(task, "trained")
    assert row.model.adapter == weights_digest(first / WHOLE) and row.model.is_loaded
    [report] = [one for one in card.report if one.rung == "distilled"]
    assert report.score > 0.9 and report.seconds > 0 and report.bytes > 10_000

    folders = ModelFolders(student=str(base), teacher="large", teacher_weights=str(first / WHOLE))
    second, card = train(store, task, SETTINGS, words, folders=folders, rung="distilled")
    assert card.lineage == {"base": "llama3", "teacher": "large"} and card.rungs["distilled"][1] > 0.9, card
    assert not first.exists() and (students_folder(path) / second / WHOLE).is_dir()  # it took its place


@needs_train
@pytest.mark.soak
def test_a_training_that_was_killed_makes_the_same_weights(
    tmp_path: Path, store: ExampleStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching, "plan_of", lambda lessons, longest: replace(LEARNING, epochs=30))
    monkeypatch.setattr(teaching, "WHOLE_EPOCHS", 30)
    task = collected(store, 100)
    embed_examples(store.database, SETTINGS.encoder, words)
    lessons = lessons_of(task_examples(store.database, task, SETTINGS.encoder)).lessons
    digests: list[str] = []
    for kills in (0, 3):
        place = AdapterPlace(
            base="llama3",
            weights=base,
            folder=tmp_path / f"s-{kills}",
            cores=1,
            hours=1.0,
            kind=WHOLE,
            teacher="large",
            teacher_weights=base,
        )
        left = [kills]

        def noted(note: AdapterNote, left: list[int] = left) -> None:
            if note.kind == "step" and note.step > 20 * (4 - left[0]) and left[0]:
                left[0] -= 1
                [child] = [one for one in psutil.Process().children() if MODULE in one.cmdline()]
                child.kill()

        while True:
            try:
                teach(lessons, place, lambda: False, noted)
                break
            except InvalidRequest as error:
                assert "was ended" in error.message
        assert left == [0]
        digests.append(weights_digest(place.made))
    assert digests[0] == digests[1]


@needs_train
@pytest.mark.soak
def test_its_process_is_killed_and_goes_on(tmp_path: Path, store: ExampleStore, base: Path) -> None:
    database, file = store.database, adapt_file(tmp_path / "store.sqlite3")
    task = collected(store, 300)
    embed_examples(database, SETTINGS.encoder, words)
    folders = ModelFolders(student=str(base))

    def stage() -> str:
        kept = kept_training(database, task)
        return "" if kept is None else kept.stage

    process = TrainingProcess(file, task, SETTINGS, folders, "distilled")
    until(lambda: stage().startswith("distilled step"))
    kept = kept_training(database, task)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TrainingEnded, match="SIGKILL"):
        process.result()
    psutil.wait_procs(children, timeout=60)
    assert kept is not None and (students_folder(file) / kept.student).is_dir()
    try:
        name, card = TrainingProcess(file, task, SETTINGS, folders, "distilled").result()
        assert name == kept.student and card.rung == "distilled"
    except InvalidRequest as error:  # such a model learns little of so few steps
        assert "distilled: nothing is certified" in error.message
        assert not (students_folder(file) / kept.student).exists()
    assert not kept_training(database, task) and database.damage() == []


@needs_train
@pytest.mark.soak
def test_it_answers_in_a_server_and_is_in_no_list(tmp_path: Path, store: ExampleStore) -> None:
    """A server of processes, in front of `nano`; after a kill it is loaded again."""
    (tmp_path / "headrace.toml").write_text(
        f'store = "{tmp_path}/store.sqlite3"\n[adapt]\nenabled = true\nkeys = ["*"]\n'
        'detector = "patterns"\nmargin = 0.2\nbase = "nano"\n'
    )
    with serving(tmp_path) as http:
        fresh = iter(asked(3, 400))
        for _ in range(2):
            say(http, next(fresh))
        task = until(lambda: store.tasks())[0].id
        until(lambda: len(store.export()) == 2)
        collected(store, 300)
        store.database.execute("UPDATE examples SET task = ?, model = 'nano'", (task,))
        store.database.execute("DELETE FROM examples WHERE answer != ?", (ANSWER,))
        settings = AdaptSettings(margin=0.2, base="nano", encoder="embed")
        folders = folders_of(store, task, settings, shipped)
        name, card = train(store, task, settings, words, folders=folders, rung="distilled")
        assert card.rungs["distilled"][1] > 0.9, card
        store.database.execute("UPDATE students SET state = 'ready'")
        promoted = http.post("/v1/adapt/promote", json={"task": task, "share": 1, "audit": 0.001})
        assert promoted.status_code == 200, promoted.text
        until(lambda: say(http, next(fresh)) == (ANSWER, f"adapt/{name}"))
        assert name not in http.get("/v1/models").text
        body = {"model": f"adapt-{name}", "messages": [{"role": "user", "content": "x"}]}
        assert http.post("/v1/chat/completions", json=body).status_code == 404
    with serving(tmp_path) as http:
        until(lambda: say(http, next(fresh)) == (ANSWER, f"adapt/{name}"))
        assert http.post("/v1/adapt/rollback", json={"task": task}).status_code == 200
        until(lambda: say(http, next(fresh))[1] == "nano")


def shipped(name: str) -> Path:
    return resolve(name, offline=True)


def say(http: httpx.Client, text: str) -> tuple[str, str]:
    body: dict[str, Any] = {
        "model": "nano",
        "messages": [{"role": "system", "content": "Answer."}, {"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 16,
    }
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    said = reply.json()["choices"][0]["message"]["content"]
    return said, reply.headers.get("x-headrace-target", "nano")


@contextmanager
def serving(folder: Path) -> Iterator[httpx.Client]:
    """`headrace serve` in a folder, killed at the end."""
    command = [sys.executable, "-m", "headrace", "serve", "nano", "embed", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if "HEADRACE" not in name}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, "the server did not start"
        with httpx.Client(base_url=found[0], timeout=300, trust_env=False) as http:
            yield http
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
