"""Nothing outlives its retention or a person's word: examples, what students keep of them, and files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from learning import fill, learning_server, words
from test_students import ROUTE, lessons

from headrace.adapt.decisions.alerts import latest_alerts, raise_alert
from headrace.adapt.decisions.promotion import promote, start_shadow
from headrace.adapt.decisions.shadow import catch_up
from headrace.adapt.export import everything
from headrace.adapt.retention import sweep
from headrace.adapt.schema import open_adapt
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.student import Student, taught, without_expired
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import find_groups
from headrace.config.adapt_settings import AdaptSettings
from headrace.gateway.gate import GateStore
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.database import Database

OLD = [f"where is the {word} parcel" for word in ("copper", "velvet", "marble", "walnut")]
NEW = [f"when does the {word} shop open" for word in ("garnet", "willow", "timber", "cobalt")]
NOW_S = time.time()
SETTINGS = AdaptSettings(margin=0.05, retention=900.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "s.sqlite3")) as database:
        yield ExampleStore(database)


def known(store: ExampleStore, count: int, first: int = 0) -> str:
    """Examples whose questions come again, the first hundred with other ones; a second after each other."""
    task = ""
    for number in range(first, first + count):
        asked = OLD if number < 100 else NEW
        place = number % len(asked)
        more = {"question": asked[place], "answer": f"place {place}", "at_s": NOW_S - 1000 + number}
        task = fill(store, 1, first=number, **more)
    return task


def kept(folder: Path, texts: list[str]) -> bool:
    """Whether a file has one of these texts, by the word that no other has."""
    data = b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())
    return any(one.split()[3].encode() in data for one in texts)


def test_students_keep_no_question_beyond_the_retention(tmp_path: Path, store: ExampleStore) -> None:
    task, gates = known(store, 250), GateStore(Database(None))
    name, card = train(store, task, SETTINGS, words)
    assert card.rung == "exact"
    start_shadow(store, task)
    known(store, 300, first=250)
    assert catch_up(store, Registry(store.database).student(task, "shadow"), words) == "ready"
    promote(store, gates, task, ROUTE, "ann")
    assert kept(tmp_path, OLD) and kept(tmp_path, NEW)
    assert sweep(store, SETTINGS, NOW_S) == 100 + 1 and sweep(store, SETTINGS, NOW_S) == 0
    store.rewrite()
    assert not kept(tmp_path, OLD) and kept(tmp_path, NEW)
    row = Registry(store.database).student(task, "promoted")  # it answers the rest, certified as it was
    said = Student(row.model).answer([OLD[1], NEW[1]], words([OLD[1], NEW[1]]))
    assert [one.text for one in said] == [None, "place 1"] and row.card.weights == card.weights

    sweep(store, SETTINGS, NOW_S + 10_000)
    store.rewrite()
    assert not kept(tmp_path, OLD) and not kept(tmp_path, NEW)
    assert Registry(store.database).student(task, "rolled_back").id == name
    assert "older than adapt.retention" in latest_alerts(store.database)[0].text
    assert not store.export()


def test_a_near_student_without_expired_questions_says_nothing_new() -> None:
    known = [(f"lost my {word} card", "lost") for word in ("red", "blue", "old", "new", "second", "gold")]
    known += [
        (f"what is the rate of {word}", "rate") for word in ("yen", "pesos", "francs", "crowns", "marks")
    ]
    given = [
        type(one)(one.question, one.answer, one.vector, float(at)) for at, one in enumerate(lessons(*known))
    ]
    model = taught("nearest", given)
    assert without_expired(model, 0.0) is model
    less = without_expired(model, 6.0)
    assert less.answers == ("rate",) and less.places == (0,) * 5 and len(less.times) == 5
    asked = ["what is the rate of rupees", "lost my green card"]
    before, after = (Student(one).answer(asked, words(asked)) for one in (model, less))
    assert after[0].text == before[0].text == "rate" and before[1].text == "lost" and after[1].text != "lost"
    none = without_expired(model, 99.0)
    assert none.questions == () and Student(none).answer(asked, words(asked))[0].text is None


def test_a_server_sweeps_also_without_traffic(tmp_path: Path) -> None:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        fill(ExampleStore(database), 5)
    embed = load_model("embed", EngineOptions(threads=1))
    with learning_server(tmp_path, str, embed, retention="10m") as (_, _, store):
        for _ in range(3000):
            if not store.export():
                break
            time.sleep(0.02)
        assert not store.export()
    embed.close()


def test_what_a_key_has_taught_goes_with_it(store: ExampleStore) -> None:
    """Also where its own examples are gone: the student has learned from them."""
    task = fill(store, 150, key="ann")
    fill(store, 150, first=500, key="eve", at_s=time.time() - 999)
    name, card = train(store, task, AdaptSettings(margin=0.05), words)
    assert set(card.keys) == {"ann", "eve"}
    ann = everything(store, "ann")
    assert {one["record"] for one in ann} == {"example", "task", "student", "decision"}
    [student] = [one for one in ann if one["record"] == "student"]
    assert student["card"]["keys"] == card.keys and "questions" not in student  # some are Eve's
    assert {one["key_name"] for one in ann if one["record"] == "example"} == {"ann"}
    store.database.execute("DELETE FROM examples WHERE key_name = 'ann'")
    gone = store.forget("ann")
    assert (gone.examples, gone.students) == (0, [name])
    assert not Registry(store.database).students("trained")
    last = Registry(store.database).decisions(task)[-1]
    assert (last.what, last.student) == ("forgotten", name)
    assert store.forget("ann").students == [] and len(store.export()) == 150  # the other key's stay


def test_an_export_has_every_kind_of_record(store: ExampleStore) -> None:
    task = known(store, 250)
    train(store, task, SETTINGS, words)
    start_shadow(store, task)
    known(store, 50, first=250)
    catch_up(store, Registry(store.database).student(task, "shadow"), words)
    store.count_dropped("too long")
    found = everything(store)
    counts: dict[str, int] = {}
    for one in found:
        counts[one["record"]] = counts.get(one["record"], 0) + 1
    assert counts["example"] == 300 and counts["evidence"] == 50 and counts["dropped"] == 1
    assert counts["task"] == counts["student"] == 1 and counts["decision"] == 2
    assert json.loads(json.dumps(found)) == found
    [student] = [one for one in found if one["record"] == "student"]
    assert set(student["questions"]) == {*OLD, *NEW}


def test_instructions_of_programs_do_not_outlive_the_retention(store: ExampleStore) -> None:
    """Of a task that has a name, or a student, nothing stays but that; traffic brings the rest again."""
    task = fill(store, 3)
    store.rename(task, "mail")
    assert store.task(task).template == "Sort."
    sweep(store, AdaptSettings(retention=60.0), time.time() + 10_000)
    [row] = store.tasks()
    assert (row.template, row.tools, row.form, row.name, row.examples) == ("", "", "", "mail", 0)
    assert store.has_deleted and "Sort." not in json.dumps(everything(store))
    fill(store, 1, first=50)
    assert store.task("mail").template == "Sort."


def test_names_that_are_words_of_a_key_go_with_its_examples(store: ExampleStore) -> None:
    """Of a team's task, which stays; a name that a person has given stays, too."""
    task = fill(store, 30, key="ann")
    for number in range(30):
        asked = {"question": f"the velvet parcel {number}", "answer": "x"}
        fill(store, 1, first=1000 + number, key="eve", **asked)
    find_groups(store, "embed", words)
    assert "velvet" in store.task(task).name
    store.forget("eve")
    assert store.task(task).name == "" and store.task(task).examples == 30
    store.rename(task, "velvet")
    store.forget(None, "ann-3")
    assert store.task(task).name == "velvet"


def test_alerts_keep_no_words_of_a_task_beyond_the_retention(tmp_path: Path, store: ExampleStore) -> None:
    task = known(store, 4)
    said = f"task {task} (parcel, velvet): student s-1 is ready"
    assert raise_alert(store.database, "ready", task, "s-1", said)
    sweep(store, SETTINGS)
    assert latest_alerts(store.database)[0].text == said
    sweep(store, SETTINGS, time.time() + SETTINGS.retention + 1)
    assert latest_alerts(store.database)[0].text == f"ready: student s-1 of task {task}"
    store.rewrite()
    assert not kept(tmp_path, OLD)
    assert not raise_alert(store.database, "ready", task, "s-1", said)  # nobody is told again
    assert sweep(store, SETTINGS, time.time() + SETTINGS.retention + 1) == 0
