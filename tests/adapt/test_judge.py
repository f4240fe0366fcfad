"""A judge compares texts in the shadow: no student is proposed by more than people's labels support."""

from __future__ import annotations

import json
import math
import os
import pty
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake import FakeModel
from learning import ANSWERS, FILLERS, ask, fill, learning_server, settled, words

from headrace.adapt.actions import label, to_label
from headrace.adapt.decisions.comparisons import (
    AnswerPair,
    JudgedPair,
    PairLabel,
    PairToLabel,
    Preferred,
    decide,
    progress_of,
)
from headrace.adapt.decisions.judging import JudgeReply, compared
from headrace.adapt.decisions.promotion import promote, start_shadow
from headrace.adapt.decisions.shadow import catch_up, prospects
from headrace.adapt.export import everything
from headrace.adapt.fine_tuning.order import AdapterPlan
from headrace.adapt.retention import sweep
from headrace.adapt.schema import open_adapt
from headrace.adapt.students.registry import Registry, StudentRow
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.api.app import create_app
from headrace.config.adapt_settings import AdaptSettings
from headrace.config.sources import load_settings
from headrace.errors import InvalidRequest, Overloaded, UsageError
from headrace.evals.calibrated_evidence import (
    SKIPPED,
    bounds_of,
    calibration_of,
    judged_lower_bound,
    judged_standing,
    missing_labels,
    simulate_judged,
)
from headrace.evals.paired_evidence import PairCounts, Standing
from headrace.gateway.gate import GateStore
from headrace.gateway.routes import plain_route
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.database import Database
from tiny import tiny_model

STUDENTS, ALPHA = 1000, 0.05
MOST = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / STUDENTS)
SETTINGS = AdaptSettings(margin=0.05, judge="expert")
LIBRARIES = ("torch", "transformers", "peft")  # which take seconds to import: the training does
needs_train = pytest.mark.skipif(not all(map(find_spec, LIBRARIES)), reason="needs headrace[train]")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        yield ExampleStore(database)


def standing_by(counts: PairCounts, pairs: Sequence[tuple[bool, int, int | None]]) -> Standing:
    return judged_standing(counts, bounds_of(calibration_of(pairs), 0.05, ALPHA))


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("agreement", "leaning"),
    [
        (0.75, 0.0),
        (0.75, 1.0),
        pytest.param(1 / 3, 0.0, marks=NIGHTLY),
        pytest.param(0.0, 1.0, marks=NIGHTLY),
    ],
)
def test_students_at_the_bound_are_seldom_proposed_whatever_the_judge_is(
    agreement: float, leaning: float
) -> None:
    """Also by one that prefers the student wherever it is wrong."""
    given: dict[str, Any] = {"agreement": agreement, "leaning": leaning, "labels": 300, "examples": 1000}
    assert simulate_judged(STUDENTS, 0.05, ALPHA, **given).proposed_share <= MOST


def test_good_students_are_proposed_with_labels_and_by_no_chance() -> None:
    given: dict[str, Any] = {"labels": 600, "better": 0.03, "examples": 1500}
    assert simulate_judged(100, 0.05, ALPHA, agreement=0.9, **given).proposed_share >= 0.8
    few = given | {"labels": 60}  # of which not even people could tell
    assert simulate_judged(100, 0.05, ALPHA, agreement=1 / 3, **few).proposed_share <= ALPHA
    assert simulate_judged(100, 0.05, ALPHA, agreement=0.9, **given | {"labels": 0}).proposed_share == 0


@pytest.mark.nightly
def test_looks_after_every_label_are_paid_for() -> None:
    """Labels come one by one, and after each the student is looked at; the judge leans to it."""
    import numpy as np

    random, proposed, students = np.random.default_rng(7), 0, 200
    for _ in range(students):
        drawn = random.random((3, 400))
        people = (drawn[0] < 0.1).astype(int) - (drawn[0] >= 0.85)
        said = np.where(drawn[1] < 0.75, people, np.where(people == 1, 0, 1))
        pairs = list(zip([True] * 400, said.tolist(), people.tolist(), strict=True))
        for seen in range(40, 401, 20):
            counts = PairCounts(
                int((said[:seen] == 1).sum()), int((said[:seen] == 0).sum()), int((said[:seen] == -1).sum())
            )
            if standing_by(counts, pairs[:seen]) == "ready":
                proposed += 1
                break
    assert proposed / students <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / students)


def test_labels_stand_for_pairs_that_needed_no_judge_and_skips_speak_against_the_student() -> None:
    pairs: list[tuple[bool, int, int | None]] = [(False, 0, None), (False, 0, None), (False, 0, None)]
    pairs += [(True, 1, 1), (False, 0, None), (True, -1, None), (True, 1, SKIPPED)]
    found = calibration_of(pairs)
    assert (found.labels, found.skipped, found.agreed, found.decided) == (2, 1, 1, 1)
    assert sum(found.gaps.values()) == 5 == sum(found.turned.values())
    assert found.gaps[1 / 3] == 1 and found.gaps[-1.0] == 1 and found.gaps[0.0] == 3
    assert found.turned[-1 / 3] == 2  # the student's as well as can be
    counts = PairCounts(300, 0, 0)
    assert standing_by(counts, [(True, 1, 1)] * 300) == "ready"
    assert standing_by(counts, [(True, 1, SKIPPED)] * 300) == "open"
    assert standing_by(PairCounts(0, 0, 300), [(True, -1, -1)] * 300) == ("inferior")
    assert judged_lower_bound(counts, calibration_of([]), ALPHA) == -1.0
    assert standing_by(counts, []) == "open"


def test_it_is_said_how_many_labels_are_missing() -> None:
    counts = PairCounts(100, 800, 50)
    assert missing_labels(counts, calibration_of([]), 0.05, ALPHA) == 10
    mixed: list[tuple[bool, int, int | None]] = [(True, 1, 1), (True, 0, 0), (True, 0, 0), (True, -1, 0)] * 5
    some = missing_labels(counts, calibration_of(mixed), 0.05, ALPHA)
    more = missing_labels(counts, calibration_of(mixed * 3), 0.05, ALPHA)
    assert some is not None and more is not None and some > more > 0
    assert missing_labels(PairCounts(0, 0, 90), calibration_of([(True, -1, -1)] * 60), 0.05, ALPHA) is None


def right(question: str) -> str:
    """The answer to a question of `fill`."""
    return next(one for one in ANSWERS if one in question)


def expert(student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
    """A judge that knows."""
    assert student.judge == "expert"
    return [JudgedPair("better" if right(one.prompt) == one.answer else "worse", nano_usd=5) for one in pairs]


def person(pair: PairToLabel) -> PairLabel:
    best: Preferred = "1" if pair.first == right(pair.prompt) else "2"
    return PairLabel(pair=pair.pair, preferred=best)


def judged(store: ExampleStore, wrong: float = 0.3, count: int = 400) -> tuple[str, StudentRow]:
    """A student of a task that a judge compares with an incumbent that has begun to be wrong."""
    task = fill(store, 250)
    store.evaluate_by(task, "judge")
    train(store, task, SETTINGS, words)
    student = start_shadow(store, task, "ann", "expert")
    fill(store, count, first=1000, wrong=wrong)
    return task, student


def test_a_student_of_texts_is_proposed_by_verdicts_and_labels_together(store: ExampleStore) -> None:
    task, student = judged(store)
    assert student.is_judged and student.card.margin == SETTINGS.judge_margin
    assert catch_up(store, student, words) == "open"  # nobody can ask the judge
    assert not store.database.query("SELECT 1 FROM evidence")
    assert catch_up(store, student, words, compare=expert) == "open"
    [prospect] = prospects(store)
    assert prospect.judge is not None and prospect.examples == 400
    told = prospect.judge
    assert told.compared > 50 and told.labels == 0 and told.missing == 10 and told.usd == told.compared * 5e-9
    assert "about 10 more labels are needed" in prospect.line and prospect.lower == -1.0
    pairs = to_label(store, task, 1000)
    assert len(pairs) == told.compared
    firsts = sum(one.first == right(one.prompt) for one in pairs)
    assert 0.2 < firsts / len(pairs) < 0.8  # in no order
    kept = label(store, task, [person(one) for one in pairs[:8]], "ann")
    assert kept.state == "shadow" and kept.judge.missing == 2
    kept = label(store, task, [person(one) for one in pairs[8:]], "ann")
    assert kept.state == "ready" and kept.judge.missing == 0 and kept.judge.agreement == 1
    [alert] = store.database.query("SELECT text FROM alerts WHERE kind = 'ready'")
    assert "the judge expert has compared" in str(alert[0])
    assert not to_label(store, task, 10)

    lines = [one for one in everything(store) if one["record"] == "comparison"]
    assert len(lines) == told.compared and {one["labeled_by"] for one in lines} == {"ann"}
    assert not [one for one in everything(store, "eve") if one["record"] == "comparison"]
    with closing(Database(None)) as main:
        gates = GateStore(main)
        assert promote(store, gates, task, plain_route("large"), "ann").state == "promoted"
        gate = gates.read(f"adapt/{task}")
    assert gate.calibration is not None and not gate.closed
    certificate = gate.calibration.certificate
    assert certificate.threshold == student.threshold and certificate.wrong == 0
    assert sweep(store, AdaptSettings(retention=1.0), time.time() + 1e6)
    assert not store.database.query("SELECT 1 FROM comparisons")  # labels go with their examples
    assert store.forget("k").students == [student.id]


def test_a_judge_that_flatters_is_found_out(store: ExampleStore) -> None:
    """It always prefers the student; the incumbent is right."""
    task, student = judged(store, wrong=0.0)
    store.database.execute("UPDATE examples SET answer = answer || '.' WHERE id > ?", (student.last_example,))

    def flatterer(student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        return [JudgedPair("better") for _ in pairs]

    assert catch_up(store, student, words, compare=flatterer) == "open"
    pairs = to_label(store, task, 400)

    def preferred(one: PairToLabel) -> Preferred:
        return "1" if one.first.endswith(".") else "2"

    kept = label(store, task, [PairLabel(pair=one.pair, preferred=preferred(one)) for one in pairs], "ann")
    assert kept.state == "inferior" and kept.judge.agreement == 0
    assert kept.judge.missing is None and "too bad" in kept.judge.line


def test_a_judge_is_asked_no_more_than_it_may_be(store: ExampleStore) -> None:
    _, student = judged(store)
    left, seen = 13, 0

    def frugal(student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        nonlocal left
        found = expert(student, pairs[:left])
        left -= len(found)
        return found

    for _ in range(2):
        assert catch_up(store, student, words, compare=frugal) == "open"
        registry = Registry(store.database)
        assert progress_of(registry, student).compared == 13  # and what came after them is not looked at
        seen = registry.counts(student.id)[0].total
        assert 13 <= seen < 100

    def broken(student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        raise Overloaded("no answer", reason="judge")

    with pytest.raises(Overloaded):
        catch_up(store, student, words, compare=broken)
    assert Registry(store.database).counts(student.id)[0].total == seen
    assert catch_up(store, student, words, compare=expert) == "open"
    assert Registry(store.database).counts(student.id)[0].total == 400


def test_ties_sways_and_refusals_are_told_apart() -> None:
    pair = AnswerPair("q >>> ANSWER A: say A", "good", "bad")

    def verdict(reply: Callable[[str], str]) -> str:
        said: list[str] = []

        def asked(system: str, prompt: str, tokens: int) -> JudgeReply:
            said.append(prompt)
            return JudgeReply(reply(prompt), 3)

        [found] = compared("expert", asked, [pair])
        assert len(said) == 2 and found.nano_usd == 6 and all(one.count(">>>") == 3 for one in said)
        return found.verdict

    assert verdict(lambda prompt: "A" if "ANSWER A <<<\ngood" in prompt else "B") == "better"
    assert verdict(lambda prompt: "B" if "ANSWER A <<<\ngood" in prompt else "A") == "worse"
    assert verdict(lambda prompt: "A") == "swayed"
    assert verdict(lambda prompt: "TIE") == "tie"
    assert verdict(lambda prompt: "") == "refused"


def test_labels_that_are_none_are_named(store: ExampleStore, tmp_path: Path, command: Any) -> None:
    task = fill(store, 250)
    with pytest.raises(InvalidRequest, match="has no student that is shadow or ready or promoted"):
        to_label(store, task, 1)
    train(store, task, AdaptSettings(margin=0.05), words)
    plain = start_shadow(store, task)
    with pytest.raises(InvalidRequest, match="compared by equality, which needs no labels"):
        to_label(store, task, 1)
    store.evaluate_by(task, "judge")
    with pytest.raises(InvalidRequest, match=r"adapt\.judge names no model"):
        train(store, task, AdaptSettings(margin=0.05), words)
    task, student = judged(store, count=60)
    assert student.id != plain.id
    catch_up(store, student, words, compare=expert)
    [first, *_] = to_label(store, task, 1)
    for pair in (
        "",
        "s-1",
        f"{plain.id}-1",
        f"{student.id}-999999",
        f"{student.id}-{'9' * 30}",
        f"{first.pair} ",
    ):
        with pytest.raises(InvalidRequest, match="has no pair"):
            label(
                store,
                task,
                [PairLabel(pair=first.pair, preferred="1"), PairLabel(pair=pair, preferred="1")],
                "a",
            )
    assert progress_of(Registry(store.database), student).labels == 0  # all or nothing

    (tmp_path / "headrace.toml").write_text(f'store = "{tmp_path}/store.sqlite3"\n')
    listed = [json.loads(line) for line in command("label", task, "--list").splitlines()]
    assert set(listed[0]) == {"pair", "prompt", "first", "second"}
    file = tmp_path / "labels.jsonl"
    file.write_text(f'{{"pair": "{listed[0]["pair"]}", "preferred": "3"}}\n')
    assert "line 1: Invalid enum value '3'" in command("label", task, "--from", str(file), code=2)
    file.write_text("\n".join(json.dumps({"pair": one["pair"], "preferred": "tie"}) for one in listed))
    told = json.loads(command("label", task, "--from", str(file), "--json"))
    assert told["kept"] == len(listed) == told["judge"]["labels"]
    assert "asks in a terminal" in command("label", task, code=2)
    assert "more labels are needed" in command("status") and "the judge expert" in command("history", task)
    command("tasks", "--evaluator", task, "auto")
    assert store.task(task).evaluator == ""
    assert "must be one of equal, judge, auto" in command("tasks", "--evaluator", task, "best", code=1)


def test_a_person_labels_in_a_terminal(store: ExampleStore, tmp_path: Path) -> None:
    """Keys that are none are asked again; what a text would do to the terminal is shown instead."""
    task, student = judged(store, count=40)
    catch_up(store, student, words, compare=expert)
    store.database.execute("UPDATE comparisons SET answer = answer || char(27) || '[2J'")
    ours, theirs = pty.openpty()
    arguments = ["-m", "headrace", "adapt", "label", task, "--store", str(tmp_path / "store.sqlite3")]
    process = subprocess.Popen([sys.executable, *arguments], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"x\n1\nt\ns\nq\n")
    said = b""
    with suppress(OSError):  # where the other end is closed
        while part := os.read(ours, 4096):
            said += part
    os.close(ours)
    assert process.wait(60) == 0, said
    assert b"3 labels are kept" in said and b"(1 skipped)" in said and b"\x1b[2J" not in said, said
    rows = store.database.query("SELECT label, labeled_by FROM comparisons WHERE label IS NOT NULL")
    assert sorted(str(one) for one, _ in rows) == ["1", "skip", "tie"] and all(who for _, who in rows)


def test_what_is_forgotten_while_the_judge_is_asked_is_no_evidence(store: ExampleStore) -> None:
    _, student = judged(store, count=40)

    def slow(student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        store.database.execute("DELETE FROM examples WHERE id > ?", (student.last_example,))
        return expert(student, pairs)

    catch_up(store, student, words, compare=slow)
    registry = Registry(store.database)
    assert not registry.counts(student.id)[0].total and not store.database.query("SELECT 1 FROM comparisons")
    decide(registry, student)
    assert registry.students("shadow")


def test_the_settings_name_a_judge_that_is_served() -> None:
    table = {"enabled": True, "keys": ["*"], "detector": "patterns", "judge": "nobody"}
    with pytest.raises(UsageError, match=r"adapt\.judge is 'nobody', which is not served"):
        create_app(FakeModel(), load_settings({"adapt": table}, environ={}, folders=[]))


PAIR = re.compile(r"PROMPT <<<\n(.*)\n>>>\n\nANSWER A <<<\n(.*)\n>>>\n\nANSWER B <<<\n(.*)\n>>>", re.DOTALL)


class World:
    """What a provider answers: as the large model, which may be wrong, and as the judge, which knows."""

    def __init__(self) -> None:
        self.is_new = self.errs = False

    def truth(self, text: str) -> str:
        return right(text) + (" (new)" if self.is_new else "")

    def __call__(self, text: str) -> str:
        found = PAIR.search(text)
        if found is None:
            return "rate" if self.errs and len(text) % 3 == 0 else self.truth(text)
        question, first, second = found.groups()
        best = self.truth(question)
        if (first == best) == (second == best):
            return "TIE"
        return "A" if first == best else "B"


@pytest.fixture(scope="module")
def embed() -> Iterator[Any]:
    model = load_model("embed", EngineOptions(threads=1))
    yield model
    model.close()


def until(happened: Callable[[], Any]) -> Any:
    for _ in range(3000):
        if found := happened():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def spent_for_judge(folder: Path) -> int:
    """Nano-dollars, by the ledger."""
    with closing(Database(folder / "store.sqlite3")) as main:
        [(total,)] = main.query(
            "SELECT coalesce(sum(nano_usd), 0) FROM ledger_entries WHERE kind = 'attempt' AND route = 'judge'"
        )
    return int(total)  # type: ignore[call-overload]


def test_the_loop_of_a_server_with_a_judge(tmp_path: Path, embed: Any) -> None:
    """Judged in idle time, labeled over HTTP, promoted, audited by the judge, rolled back where it gets
    worse."""
    world, drawn = World(), random.Random(5)

    def send(count: int) -> list[str]:
        texts = [
            f"about {drawn.choice(ANSWERS)} and {drawn.choice(FILLERS)} {drawn.choice(FILLERS)} {number}"
            for number in range(count)
        ]
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda text: ask(server, text), texts))
        return [one.headers["x-headrace-target"] for one in replies]

    given: dict[str, Any] = {"judge": "judge", "remote": {"judge": {"provider": "work", "model": "far-1"}}}
    with learning_server(tmp_path, world, embed, margin=0.05, **given) as (server, _, store):
        http = server.http()

        def post(action: str, code: int = 200, **body: Any) -> Any:
            reply = http.post(f"/v1/adapt/{action}", json=body, timeout=60)
            assert reply.status_code == code, reply.text
            return reply.json()

        send(200)
        settled(store, 200)
        task = store.tasks()[0].id
        assert post("evaluator", task=task, evaluator="judge")["data"][0]["evaluator"] == "judge"
        made = post("train", task=task)
        assert made["card"]["evaluator"] == "judge"
        assert post("shadow", task=task)["standing"] == "open"
        world.errs = True
        send(100)

        def status() -> Any:
            return http.get("/v1/adapt/status").json()["students"][0]

        told = until(lambda: (found := status())["examples"] >= 100 and found)["judge"]
        assert told["compared"] > 10 and told["missing"] and told["usd"] > 0
        assert set(told["verdicts"]) <= {"better", "worse", "tie"} and told["verdicts"]["better"] > 10
        assert spent_for_judge(tmp_path) == round(told["usd"] * 1e9) > 0
        pairs = http.get(f"/v1/adapt/tasks/{task}/labels", params={"limit": 500}).json()["data"]
        assert len(pairs) == told["compared"]
        labels = [
            {"pair": one["pair"], "preferred": "1" if one["first"] == right(one["prompt"]) else "2"}
            for one in pairs
        ]
        wrong = [*labels, {"pair": "s-0-1", "preferred": "1"}]
        assert "has no pair" in post(f"tasks/{task}/labels", 400, labels=wrong)["error"]["message"]
        kept = post(f"tasks/{task}/labels", labels=labels)
        assert kept["kept"] == len(labels) and kept["judge"]["agreement"] == 1
        if kept["state"] == "shadow":  # a few more pairs
            send(100)
        until(lambda: status()["state"] == "ready")

        world.errs = False
        assert post("promote", task=task, share=1, audit=1)["student"] == made["student"]
        until(lambda: send(1)[0].startswith("adapt/"))
        before = spent_for_judge(tmp_path)
        world.is_new = True  # what was right is so no more, as the judge says
        found: Any = {}
        for _ in range(60):
            send(10)
            found = http.get("/v1/adapt/history", params={"task": task}).json()
            if found["students"][0]["state"] == "rolled_back":
                break
            time.sleep(0.1)
        assert found["decisions"][0]["what"] == "rolled_back" and spent_for_judge(tmp_path) > before
        assert "that were checked were wrong, more than" in found["decisions"][0]["detail"]
        alerts = [one["text"] for one in http.get("/v1/adapt/status").json()["alerts"]]
        assert any("the large model answers again" in one and "calibrate" not in one for one in alerts)


def pong(exchange_text: str) -> str:
    """Says the same in three ways; as a judge it sees that, and is wrong in a tenth of the pairs."""
    found = PAIR.search(exchange_text)
    if found is None:
        return ("pong!", "pong.", "pong")[sum(map(ord, exchange_text)) % 3]
    if sum(map(ord, exchange_text)) % 10 == 0:
        return "A"
    good = [one.strip(".! ") == "pong" for one in found.groups()[1:]]
    return "TIE" if good[0] == good[1] else "A" if good[0] else "B"


@needs_train
@pytest.mark.nightly
def test_a_student_that_writes_is_judged_where_equality_says_nothing(
    tmp_path: Path, store: ExampleStore, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = AdapterPlan(epochs=8, batch_size=4, rate=0.02)
    monkeypatch.setattr("headrace.adapt.students.rungs.teaching.plan_of", lambda lessons, longest: learning)
    base = tiny_model(tmp_path / "base", "llama3")
    model = load_model(str(base), EngineOptions(threads=1))
    settings: dict[str, Any] = {"margin": 0.1, "base": "llama3", "judge": "judge", "judge_margin": 0.2}
    given = settings | {"remote": {"judge": {"provider": "work", "model": "far-1"}}}
    drawn = random.Random(3)

    def send(count: int) -> set[str]:
        texts = ["".join(drawn.choices("bcdfghjklmnpqrstvwxz", k=8)) for _ in range(count)]
        return {ask(server, one, "Answer.").headers["x-headrace-target"] for one in texts}

    with learning_server(tmp_path, pong, embed, model, **given) as (server, _, _store):
        http = server.http()
        send(100)
        settled(store, 100)
        task = store.tasks()[0].id
        name, card = train(
            store, task, AdaptSettings(**settings), words, folders=ModelFolders(base=str(base))
        )
        assert (card.rung, card.evaluator, card.margin) == ("lora", "judge", 0.2) and card.share > 0.5, card
        assert http.post("/v1/adapt/shadow", json={"task": task}).status_code == 200
        for _ in range(10):
            send(30)
            pairs = http.get(f"/v1/adapt/tasks/{task}/labels", params={"limit": 500}).json()["data"]
            labels = [{"pair": one["pair"], "preferred": "tie"} for one in pairs]
            if labels:
                said = http.post(f"/v1/adapt/tasks/{task}/labels", json={"labels": labels}).json()
                if said["state"] == "ready":
                    break
        assert until(lambda: Registry(store.database).students("ready"))[0].id == name
        promoted = http.post("/v1/adapt/promote", json={"task": task, "share": 1, "audit": 1})
        assert promoted.status_code == 200, promoted.text
        until(lambda: f"adapt/{name}" in send(1))
    model.close()
