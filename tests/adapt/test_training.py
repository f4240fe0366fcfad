"""Trainings are processes: last in priority, killed at any time, and after live traffic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from learning import fill, words
from msgspec.structs import replace

from headrace.adapt.decisions.alerts import latest_alerts, raise_alert
from headrace.adapt.schema import adapt_file, open_adapt
from headrace.adapt.students import checkpoints
from headrace.adapt.students.checkpoints import kept_training, note_live_traffic, wait_for_traffic
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.training import train
from headrace.adapt.students.training_process import NICE, TrainingEnded, TrainingProcess
from headrace.adapt.traffic.examples import ExampleStore, Feedback
from headrace.adapt.traffic.tasks import embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest
from headrace.tasks import few_shot

SETTINGS = AdaptSettings(margin=0.05)


class Killed(BaseException):
    """The process is gone, at once."""


def test_a_training_that_was_cut_makes_the_same_student(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every tenth step it is cut once; examples that came meanwhile are not its own."""
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    monkeypatch.setattr(few_shot, "MAX_ITERATIONS", 60)
    monkeypatch.setattr("headrace.adapt.students.training.new_student", lambda: "s-same")
    models: list[bytes] = []
    for cut in (False, True):
        database = open_adapt(None)
        store, cuts, seen = ExampleStore(database), 0, 0
        task = fill(store, 250, at_s=1e9)
        steps = [0]

        def wait(steps: list[int] = steps, cut: bool = cut) -> None:
            steps[0] += 1
            if cut and steps[0] % 11 == 0:
                raise Killed

        while True:
            try:
                name, card = train(store, task, SETTINGS, words, wait=wait)
                break
            except Killed:
                cuts += 1
                kept = kept_training(database, task)
                assert kept is not None and kept.student == "s-same" and kept.steps >= seen
                seen = kept.steps if kept.weights else 0
                fill(store, 5, first=1000 * cuts, at_s=1e9)
        assert cuts == (0 if not cut else cuts) and (not cut or cuts >= 4)
        assert name == "s-same" and card.last_example == 250 and kept_training(database, task) is None
        row = Registry(database).student(task, "trained")
        models.append(msgspec.msgpack.encode((row.model, row.pairs, replace(row.card, rungs={}, report=[]))))
        database.close()
    assert models[0] == models[1]


def test_what_was_corrected_meanwhile_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    database = open_adapt(None)
    store = ExampleStore(database)
    task = fill(store, 250)

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        train(store, task, SETTINGS, words, wait=killed)
    first = kept_training(database, task)
    correction = Feedback(correction="something else")
    store.give_feedback("k-3", "k", correction, is_admin=False, now_s=time.time())
    name, _ = train(store, task, SETTINGS, words)
    assert first is not None and name != first.student and kept_training(database, task) is None
    database.close()


def test_what_is_deleted_is_in_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in one that was interrupted, nor in the student of one that runs; nor in an alert's words."""
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    database = open_adapt(None)
    store = ExampleStore(database)
    task = fill(store, 250)
    fill(store, 250, first=1000, key="other")

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        train(store, task, SETTINGS, words, wait=killed)
    raise_alert(database, "drift", task, "s-1", "task (card, pin) has changed")
    assert kept_training(database, task) is not None
    assert store.forget("k").examples == 250
    assert kept_training(database, task) is None and not latest_alerts(database)
    fill(store, 250, first=2000)
    with pytest.raises(InvalidRequest, match="deleted while a student learned"):
        train(store, task, SETTINGS, words, wait=lambda: store.forget("k"))
    assert not Registry(database).students("trained")
    _, card = train(store, task, SETTINGS, words)
    assert card.keys == {"other": card.lessons}
    database.close()


def test_it_waits_while_requests_are_under_way() -> None:
    database = open_adapt(None)
    note_live_traffic(database)
    began, done = time.time(), threading.Event()
    waiting = threading.Thread(target=lambda: (wait_for_traffic(database), done.set()))
    waiting.start()
    note_live_traffic(database)
    assert not done.is_set()
    waiting.join(30)
    assert done.is_set() and time.time() - began >= checkpoints.BUSY_S
    database.close()


def test_its_process_is_killed_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    database = open_adapt(path)
    store = ExampleStore(database)
    task = fill(store, 3000)
    embed_examples(database, SETTINGS.encoder, words)
    note_live_traffic(database)
    process = TrainingProcess(adapt_file(path), task, SETTINGS)
    while not database.query("SELECT 1 FROM trainings WHERE stage != 'exact'"):
        time.sleep(0.01)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICE
    second = TrainingProcess(adapt_file(path), task, SETTINGS)
    with pytest.raises(InvalidRequest, match="another training runs"):
        second.result()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TrainingEnded, match="SIGKILL"):
        process.result()
    kept = kept_training(database, task)
    assert kept is not None and kept.rungs
    name, card = TrainingProcess(adapt_file(path), task, SETTINGS).result()
    assert name == kept.student and card.lessons > 1000
    assert kept_training(database, task) is None and database.damage() == []
    database.close()


STARTS = """
import msgspec, sys, time
from pathlib import Path
from headrace.adapt.students.training_process import TrainingProcess
from headrace.config.adapt_settings import AdaptSettings
print(TrainingProcess(Path(sys.argv[1]), sys.argv[2], AdaptSettings(margin=0.05)).pid, flush=True)
time.sleep(3600)
"""


def test_its_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Also where that is killed while it has nothing to say: it waits for requests of clients."""
    path = tmp_path / "s.sqlite3"
    database, lock = open_adapt(path), adapt_file(path).with_suffix(".training")
    task = fill(ExampleStore(database), 250)
    embed_examples(database, SETTINGS.encoder, words)
    note_live_traffic(database)
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(adapt_file(path)), task], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        training = psutil.Process(int(server.stdout.readline()))
        while not lock.exists():
            note_live_traffic(database)
            time.sleep(0.01)
        server.kill()
    while training.is_running() and training.status() != psutil.STATUS_ZOMBIE:
        note_live_traffic(database)
        time.sleep(0.01)
    assert not Registry(database).students("trained") and kept_training(database, task) is None
    database.close()


def test_it_gets_no_more_memory_than_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    database = open_adapt(path)
    task = fill(ExampleStore(database), 2000)
    embed_examples(database, SETTINGS.encoder, words)
    process = TrainingProcess(adapt_file(path), task, replace(SETTINGS, train_memory=1 << 20))
    with pytest.raises((InvalidRequest, TrainingEnded), match=r"adapt\.train_memory"):
        process.result()
    assert not Registry(database).students("trained")
    database.close()


def test_its_settings_are_in_no_list_of_processes(tmp_path: Path) -> None:
    """Canaries and the address of a webhook are secrets; what a process was started with is none."""
    path = tmp_path / "s.sqlite3"
    database = open_adapt(path)
    task = fill(ExampleStore(database), 250)
    embed_examples(database, SETTINGS.encoder, words)
    settings = replace(SETTINGS, canaries=("code 88",), webhook="https://example.com/token")
    process = TrainingProcess(adapt_file(path), task, settings)
    while not (shown := Path(f"/proc/{process.pid}/cmdline").read_bytes()):
        time.sleep(0.01)  # it is being started
    assert b"training_process" in shown and b"code 88" not in shown and b"token" not in shown
    assert process.result()[0] == Registry(database).student(task, "trained").id
    database.close()
