"""Students and what becomes of them: kinds, bounds of keys, decisions, and kills at any time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learning import ANSWERS, add_evidence, fill, words
from msgspec.structs import replace

from headrace.adapt.decisions import diagnosis
from headrace.adapt.decisions.diagnosis import diagnose
from headrace.adapt.decisions.promotion import promote, roll_back, start_shadow
from headrace.adapt.decisions.shadow import (
    LEAST_PAIRS,
    catch_up,
    machine_usd_per_month,
    monthly_requests,
    prospects,
    worse_keys,
)
from headrace.adapt.schema import open_adapt
from headrace.adapt.serving import GROW_EVERY, Promotion
from headrace.adapt.students.exposure import PLANTED, canaries, exposure_of
from headrace.adapt.students.ladder import capped, gate_name, needed, split, task_examples
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.student import Lesson, Student, taught
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore, Feedback
from headrace.adapt.traffic.tasks import embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.config.providers import RemoteModelSettings
from headrace.errors import CorruptFile, InvalidRequest
from headrace.gateway.gate import GateStore
from headrace.gateway.routes import LocalTarget, Route
from headrace.storage.database import Database

SETTINGS = AdaptSettings(margin=0.05)
ROUTE = Route(name="large", targets=(LocalTarget("mini"),), settings=RemoteModelSettings(targets=("mini",)))


@pytest.fixture
def store() -> Iterator[ExampleStore]:
    database = open_adapt(None)
    yield ExampleStore(database)
    database.close()


def lessons(*pairs: tuple[str, str]) -> list[Lesson]:
    return [Lesson(text, answer, words([text])[0]) for text, answer in pairs]


def test_kinds_of_students_say_what_they_know() -> None:
    known = lessons(("red one", "a"), ("Red  ONE", "a"), ("blue", "b"), ("blue", "c"), ("blue two", "b"))
    asked = ["red ONE", "blue", "green"]
    exact = Student(taught("exact", known)).answer(asked, words(asked))
    assert [one.text for one in exact] == ["a", None, None] and exact[0].score == 0.0
    near = [(f"lost my {word} card", "lost") for word in ("red", "blue", "old", "new", "second", "gold")]
    far = [(f"what is the rate of {word}", "rate") for word in ("yen", "pesos", "francs", "crowns", "euros")]
    for rung in ("nearest", "head"):
        student = Student(taught(rung, lessons(*near, *far)))
        said = student.answer(["lost my green card"], words(["lost my green card"]))
        assert said[0].text == "lost" and -3 < said[0].score <= 0
        assert taught(rung, lessons(*near, *far)).digest == student.model.digest
    with pytest.raises(CorruptFile, match="vectors of 384 numbers, not 5"):
        student.answer(["x"], np.ones((1, 5), np.float32))


def test_too_little_traffic_says_how_much_is_missing(store: ExampleStore) -> None:
    task = fill(store, 50)
    with pytest.raises(InvalidRequest, match=rf"{needed(0.1) - 50} more"):
        train(store, task, SETTINGS, words)
    fill(store, 150, first=50, answer="Dear Ann, " + "this is long. " * 30)
    with pytest.raises(InvalidRequest, match="closed answers"):
        train(store, task, SETTINGS, words)


def test_what_no_simple_student_can_answer(store: ExampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice is of settings of the adaptive loop, and says what is still to be tried."""
    task = fill(store, 250, wrong=1.0)
    found = diagnose(store, store.task(task), SETTINGS, words)
    assert found.missing.startswith("head: nothing is certified: ")
    assert "wrong answer or none" in found.missing and "raise adapt.margin" in found.missing
    with pytest.raises(InvalidRequest, match="raise adapt"):
        train(store, task, SETTINGS, words)
    with_base = replace(SETTINGS, base="mini")
    monkeypatch.setattr(diagnosis, "why_not", lambda base, rung="lora": "")
    assert "LoRA on mini is not tried: " in diagnose(store, store.task(task), with_base, words).missing


def test_answers_that_only_lora_can_write(store: ExampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    task = fill(store, 250, answer="Dear Ann, " + "this is long. " * 30)
    assert "closed answers" in diagnose(store, store.task(task), SETTINGS, words).missing
    monkeypatch.setattr(diagnosis, "why_not", lambda base, rung="lora": "")
    found = diagnose(store, store.task(task), replace(SETTINGS, base="mini"), words)
    assert "LoRA on mini is not tried: " in found.missing


def test_a_student_is_made_judged_promoted_and_taken_back(store: ExampleStore) -> None:
    task, gates = fill(store, 250), GateStore(Database(None))
    name, card = train(store, task, SETTINGS, words)
    assert (
        card.share > 0.8
        and card.keys == {"k": card.lessons}
        and set(card.rungs) == {"exact", "nearest", "head"}
    )
    assert card.last_example == 250 and len(card.data_sha256) == 64
    registry = Registry(store.database)
    with pytest.raises(InvalidRequest, match="is trained"):
        promote(store, gates, task, ROUTE, "ann")
    assert catch_up(store, start_shadow(store, task), words) == "open"  # it has seen all of these
    fill(store, 300, first=1000)
    assert catch_up(store, registry.students("shadow")[0], words) == "ready"
    assert catch_up(store, start_shadow(store, task), words) == "ready", "also who asks again"
    counts, _ = registry.counts(name)
    assert counts.total < 300 and counts.worse <= counts.total * 0.05
    [prospect] = prospects(store)
    assert prospect.saves_usd_per_month == pytest.approx(prospect.usd_per_month * prospect.answered)
    chooser = Route(
        name="x", targets=ROUTE.targets, settings=RemoteModelSettings(targets=("m",), route="cheapest")
    )
    with pytest.raises(InvalidRequest, match="chooses by 'cheapest'"):
        promote(store, gates, task, chooser, "ann")
    row = promote(store, gates, task, ROUTE, "ann", share=0.25)
    gate = gates.read(gate_name(task))
    assert not gate.closed and gate.calibration is not None and gate.calibration.large == "local mini"
    assert [Promotion(row, Student(row.model), n * GROW_EVERY).share for n in range(4)] == [
        0.25,
        0.5,
        1.0,
        1.0,
    ]
    assert roll_back(store, task, "ann") is not None and roll_back(store, task, "ann") is None
    said = [(one.what, one.who) for one in registry.decisions(task)]
    assert said[0] == ("trained", "headrace") and said[-2:] == [("promoted", "ann"), ("rolled_back", "ann")]
    with pytest.raises(InvalidRequest, match="train another"):
        promote(store, gates, task, ROUTE, "ann")
    assert store.forget("k").students == [name] and not registry.students(
        "rolled_back"
    )  # with the data goes what was learned


def test_a_bad_student_is_told_and_never_judged_again(store: ExampleStore) -> None:
    task = fill(store, 250)
    train(store, task, SETTINGS, words)
    start_shadow(store, task)
    fill(store, 200, first=1000, wrong=0.6)
    registry = Registry(store.database)
    assert catch_up(store, registry.students("shadow")[0], words) == "inferior"
    assert not registry.students("shadow", "ready", "trained") and not prospects(store)


def test_what_a_student_said_teaches_nobody(store: ExampleStore) -> None:
    task = fill(store, 40)
    fill(store, 40, first=40, target="adapt/s-1")
    embed_examples(store.database, "embed", words)
    assert len(task_examples(store.database, task, "embed")) == 40


def test_corrections_and_scores_count(store: ExampleStore) -> None:
    task = fill(store, 4, answer="wrong")
    for reply, said in (("k-0", Feedback(correction="right")), ("k-1", Feedback(score=0.0))):
        store.give_feedback(reply, "k", said, is_admin=False, now_s=time.time())
    embed_examples(store.database, "embed", words)
    found = task_examples(store.database, task, "embed")
    assert [(one.said, one.answer) for one in found] == [
        ("wrong", "right"),
        ("wrong", "wrong"),
        ("wrong", "wrong"),
    ]


def test_a_key_that_floods_is_half_at_most(store: ExampleStore) -> None:
    """Of a team: what many keys share, none of them decides alone."""
    task = fill(store, 100, key="ann")
    fill(store, 2000, first=200, key="eve", answer="spam")
    embed_examples(store.database, "embed", words)
    examples = task_examples(store.database, task, "embed")
    kept = capped(examples)
    assert sum(one.key_name == "eve" for one in kept) == 100 == sum(one.key_name == "ann" for one in kept)
    parts = split(examples)
    assert sum(one.key_name == "eve" for one in parts.held_out) <= 100


def test_one_key_is_at_most_half_of_the_evidence(store: ExampleStore) -> None:
    task = fill(store, 250, key="ann")
    name, _ = train(store, task, SETTINGS, words)
    start_shadow(store, task)
    fill(store, 30, first=1000, key="ann")
    fill(store, 400, first=2000, key="eve", answer="spam")
    catch_up(store, Registry(store.database).student(task, "shadow"), words)
    rows = store.database.query(
        "SELECT key_name, count(*) FROM evidence WHERE student = ? GROUP BY 1", (name,)
    )
    counts = dict(rows)
    assert counts["eve"] <= counts["ann"] + 1  # type: ignore[operator]


def test_a_key_alone_does_not_decide_for_one_that_is_silent(store: ExampleStore) -> None:
    """Eve floods while Ann, from whom the student has learned too, asks nothing."""
    task = fill(store, 150, key="ann")
    fill(store, 150, first=200, key="eve")
    name, card = train(store, task, SETTINGS, words)
    assert set(card.keys) == {"ann", "eve"}
    start_shadow(store, task)
    fill(store, 400, first=2000, key="eve")
    registry = Registry(store.database)
    assert catch_up(store, registry.student(task, "shadow"), words) == "open"
    assert registry.counts(name)[0].total == LEAST_PAIRS
    fill(store, 300, first=4000, key="ann")  # now Eve's count, too
    assert catch_up(store, registry.student(task, "shadow"), words) == "ready"


def test_two_keys_that_ask_alike_decide_together(store: ExampleStore) -> None:
    """Half of the evidence each: that keeps neither from going on."""
    task = fill(store, 250, key="ann")
    train(store, task, SETTINGS, words)
    start_shadow(store, task)
    for number in range(300):
        fill(store, 1, first=1000 + number, key=("ann", "eve")[number % 2])
    assert catch_up(store, Registry(store.database).student(task, "shadow"), words) == "ready"


def test_a_planted_secret_is_in_no_student(store: ExampleStore) -> None:
    """An answer that came once is none that a student can give."""
    task = fill(store, 250)
    fill(store, 1, first=100, key="canary", answer="the code is 8841-canary", at_s=time.time() - 900)
    store.database.execute("UPDATE examples SET id = -1 WHERE key_name = 'canary'")  # among the lessons
    train(store, task, SETTINGS, words)
    [(model,)] = store.database.query("SELECT model FROM students")
    assert b"8841" not in model and b"card" in model  # type: ignore[operator]


def ready(store: ExampleStore, first: int = 1000, **settings: object) -> str:
    """A task whose student is proposed, of traffic that `fill` has put in."""
    task = store.tasks()[0].id
    train(store, task, AdaptSettings(margin=0.05, **settings), words)  # type: ignore[arg-type]
    start_shadow(store, task)
    fill(store, 300, first=first)
    assert catch_up(store, Registry(store.database).students("shadow")[0], words) == "ready"
    return task


def test_a_student_that_has_kept_a_planted_secret_is_not_promoted(
    store: ExampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lessons that came once nothing is learned. A ladder that did would be found."""
    fill(store, 250)
    task = ready(store)
    row = Registry(store.database).student(task, "ready")
    assert row.card.exposed == [] and exposure_of(row.model, row.id).searched == PLANTED
    secrets = [one.answer for one in canaries(row.id)]
    assert len(set(secrets)) == PLANTED and secrets == [one.answer for one in canaries(row.id)]
    monkeypatch.setattr("headrace.adapt.students.ladder.LEAST_OF_ANSWER", 1)
    task = ready(store, first=5000)
    row = Registry(store.database).student(task, "ready")
    assert row.card.exposed
    with pytest.raises(InvalidRequest, match="a canary that was planted among its lessons"):
        promote(store, GateStore(Database(None)), task, ROUTE, "ann")
    assert not Registry(store.database).students("promoted")


def test_canaries_of_the_settings_and_personal_data_are_found(store: ExampleStore) -> None:
    """Texts that came so often that any student keeps them."""
    fill(store, 20, first=2000, question="which code opens the door", answer="The Code is 88-Canary")
    fill(store, 250)
    task, gates = ready(store), GateStore(Database(None))
    with pytest.raises(InvalidRequest, match="a canary of the settings") as refused:
        promote(store, gates, task, ROUTE, "ann", canaries=("code is 88-canary",))
    assert "88-canary" not in refused.value.message.lower()
    assert promote(store, gates, task, ROUTE, "ann", canaries=("another",)).state == "promoted"
    told = taught("exact", lessons(("a", "write to ann.lee@mail.example.com"), ("b", "no")))
    assert "EMAIL_ADDRESS" in " ".join(exposure_of(told, "s").problems)


def test_what_is_bad_for_one_key_of_a_team_is_not_promoted(store: ExampleStore) -> None:
    """Eve's corrections make her half of the evidence; what they teach is wrong for Ann."""
    task = fill(store, 250, key="ann")
    name, _ = train(store, task, SETTINGS, words)
    registry = Registry(store.database)
    start_shadow(store, task)
    for number in range(80):
        values = (name, 10_000 + number, "eve" if number % 2 else "ann", None, 1 if number % 2 else -1, 1)
        add_evidence(store, values)
    store.database.execute("UPDATE students SET state = 'ready'")
    assert worse_keys(store, registry.student(task, "ready")) == ["ann"]
    with pytest.raises(InvalidRequest, match="much worse than what answers today for the keys ann"):
        promote(store, GateStore(Database(None)), task, ROUTE, "ann")


def test_of_two_promotions_at_once_one_stands(store: ExampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reads that the student is ready, and decides after the first has promoted it."""
    fill(store, 250)
    task, gates = ready(store), GateStore(Database(None))

    def during(*looked_at: Any) -> Any:
        monkeypatch.undo()
        promote(store, gates, task, ROUTE, "ann")
        return exposure_of(*looked_at)

    monkeypatch.setattr("headrace.adapt.decisions.promotion.exposure_of", during)
    with pytest.raises(InvalidRequest, match="another decision about it came first"):
        promote(store, gates, task, ROUTE, "bob")
    assert Registry(store.database).student(task, "promoted")
    said = [(one.what, one.who) for one in Registry(store.database).decisions(task)]
    assert said[-1] == ("promoted", "ann")


WORKER = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:5]
from learning import fill, words
from test_students import ROUTE, SETTINGS
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.decisions.promotion import promote, roll_back, start_shadow
from headrace.adapt.students.registry import Registry
from headrace.adapt.schema import open_adapt
from headrace.adapt.decisions.shadow import catch_up
from headrace.adapt.students.training import train
from headrace.errors import HeadraceError
from headrace.gateway.gate import GateStore
from headrace.storage.database import Database
store = ExampleStore(open_adapt(Path(sys.argv[1])))
gates = GateStore(Database(Path(sys.argv[1])))
first = int(sys.argv[5]) * 1_000_000
print("began", flush=True)
while True:
    task = fill(store, 200, first=first)
    print("filled", flush=True)
    train(store, task, SETTINGS, words)
    print("trained", flush=True)
    start_shadow(store, task)
    print("judged", flush=True)
    while catch_up(store, Registry(store.database).student(task, "shadow", "ready"), words) == "open":
        fill(store, 20, first=(first := first + 1000))
        print("judged", flush=True)
        if not Registry(store.database).students("shadow", task=task):
            break
    try:
        print("promotes", flush=True)
        promote(store, gates, task, ROUTE, "ann")
        print("takes back", flush=True)
        roll_back(store, task, "ann")
    except HeadraceError as error:
        print(error.message, flush=True)
    first += 1000
"""


@pytest.mark.nightly
def test_kills_in_any_stage_leave_a_whole_registry(tmp_path: Path) -> None:
    path, drawn = tmp_path / "s.sqlite3", random.Random(0)
    folders = [
        str(Path(__file__).parent),
        *(str(Path(__file__).parents[1] / one) for one in ("api", "providers")),
    ]
    for round, stage in enumerate((b"filled", b"judged", b"promotes", b"takes back")):
        arguments = [sys.executable, "-c", WORKER, str(path), *folders, str(round)]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        assert child.stdout is not None
        while (line := child.stdout.readline().strip()) != stage:
            assert line, "it ended by itself"
        time.sleep(drawn.uniform(0, 0.02))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        check_whole(path)


def check_whole(path: Path) -> None:
    database, gates = open_adapt(path), GateStore(Database(path))
    registry = Registry(database)
    assert database.damage() == []
    states = ("trained", "shadow", "ready", "inferior", "promoted", "rolled_back", "replaced")
    for row in registry.students(*states):
        last = [one.what for one in registry.decisions(row.task) if one.student == row.id][-1:]
        assert last == [row.state] or row.state == "replaced"
        assert Student(row.model).model.digest == row.card.weights and set(row.model.answers) <= set(ANSWERS)
        if row.state == "promoted":
            assert not gates.read(gate_name(row.task)).closed
    assert len(registry.students("promoted")) <= 1
    database.close()


def test_the_stated_saving_is_less_the_time_of_this_machine(store: ExampleStore) -> None:
    """Where that has a price: a training a month, and every answer of a student that writes."""
    task = fill(store, 250)
    train(store, task, SETTINGS, words)
    student = start_shadow(store, task)
    catch_up(store, student, words)
    [free] = prospects(store)
    assert free.machine_usd_per_month is None and free.saves_usd_per_month > 0 and "machine" not in free.line
    store.usd_per_hour = 3600.0
    [priced] = prospects(store)
    training = sum(one.seconds for one in student.card.report) / (os.cpu_count() or 1)
    assert training > 0 and priced.machine_usd_per_month == pytest.approx(training)
    assert priced.saves_usd_per_month == pytest.approx(free.saves_usd_per_month - training)
    assert "for its training and answers on this machine" in priced.line

    writes = replace(student, model=replace(student.model, rung="lora"))
    assert machine_usd_per_month(store, writes) is None  # what its answers take is not known
    add_evidence(store, (student.id, 9999, "k", None, 0, 1))
    store.database.execute("UPDATE evidence SET nano_usd = 2000000")
    answers = 0.002 * monthly_requests(store, task)
    assert machine_usd_per_month(store, writes) == pytest.approx(training + answers)
    store.usd_per_hour = 0.0
    assert "the time that it takes on this machine is not counted" in replace(free, rung="lora").line
