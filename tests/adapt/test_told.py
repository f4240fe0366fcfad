"""What commands tell a person: nothing that was not measured, and what a task is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake import FakeModel
from learning import fill, words

from headrace.adapt.decisions.promotion import start_shadow
from headrace.adapt.decisions.shadow import catch_up, prospects
from headrace.adapt.schema import open_adapt
from headrace.adapt.students.ladder import task_examples
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.rungs.outcome import are_texts
from headrace.adapt.students.training import Ladder, train
from headrace.adapt.students.training_process import TrainingProcess
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import embed_examples
from headrace.api.app import create_app
from headrace.config.adapt_settings import AdaptSettings
from headrace.config.sources import load_settings
from headrace.errors import UsageError

SETTINGS = AdaptSettings(margin=0.05, judge="expert")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        yield ExampleStore(database)


def test_a_quality_that_nobody_has_measured_is_not_told(store: ExampleStore) -> None:
    task = fill(store, 250)
    train(store, task, SETTINGS, words)
    student = start_shadow(store, task, "ann")
    [prospect] = prospects(store)
    assert "quality is not measured yet" in prospect.line and "differs" not in prospect.line
    fill(store, 30, first=1000)
    catch_up(store, student, words)
    [prospect] = prospects(store)
    assert "quality differs by +0.0%" in prospect.line and "(30 examples)" in prospect.line


@pytest.mark.parametrize(("answer", "is_judged"), [('{"to": ["%d"]}', False), ("Go to %d.", True)])
def test_a_judge_compares_texts_and_no_data(store: ExampleStore, answer: str, is_judged: bool) -> None:
    [task] = {fill(store, 1, first=number, answer=answer % number) for number in range(40)}
    embed_examples(store.database, SETTINGS.encoder, words, task=task)
    ladder = Ladder(store, task, SETTINGS, "s-1", ModelFolders(), lambda: None, None)
    ladder.has_texts = are_texts(task_examples(store.database, task, SETTINGS.encoder))
    assert ladder.is_judged(is_certified=False) is is_judged
    store.evaluate_by(task, "judge")
    ladder = Ladder(store, task, SETTINGS, "s-1", ModelFolders(), lambda: None, None)
    ladder.has_texts = False
    assert ladder.is_judged(is_certified=False), "a person has said so"


def test_a_provider_that_no_request_may_name_is_no_judge() -> None:
    flags = {
        "adapt": {"enabled": True, "keys": ["*"], "detector": "patterns", "judge": "work/far"},
        "providers": {"work": {"dialect": "openai_chat", "base_url": "http://127.0.0.1:1/v1"}},
    }
    with pytest.raises(UsageError, match="direct = true"):
        create_app(FakeModel(), load_settings(flags, environ={}, folders=[]))


def test_a_task_is_told_with_its_instructions(store: ExampleStore, command: Callable[..., str]) -> None:
    task, file = fill(store, 30), str(store.database.path).replace("-adapt", "")
    embed_examples(store.database, "embed", words)
    said = command("tasks", task, "--store", file)
    head, row, *_ = said.splitlines()
    assert head.split()[-1] == "INSTRUCTIONS" and row.split()[-1] == "Sort."
    assert "instructions: Sort." in said and "/v1/chat/completions, $" in said


def test_a_waiting_person_hears_of_a_training(store: ExampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    task, heard = fill(store, 250), list[float]()
    embed_examples(store.database, SETTINGS.encoder, words, task=task)
    monkeypatch.setattr("headrace.adapt.students.training_process.WAITING_S", 0.05)
    assert store.database.path is not None
    process = TrainingProcess(store.database.path, task, SETTINGS)
    name, card = process.result(lambda: heard.append(time.monotonic()))
    assert len(heard) > 1 and name.startswith("s-") and card.rung == "head"
