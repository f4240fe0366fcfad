"""Students that answer with parts of the question: forms of answers, the head, and the whole loop."""

from __future__ import annotations

import json
import lzma
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from learning import ask, fill, learning_server, words

from headrace.adapt.schema import open_adapt
from headrace.adapt.students.exposure import exposure_of
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.rungs.answer_form import AnswerForm, learned_form
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.rungs.tagging import ReadText, Tagger, features_of, form_and_marks, taught_tagger
from headrace.adapt.students.rungs.word_states import reader
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import CorruptFile, InvalidRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.weights.hub.resolver import resolve

SETTINGS = AdaptSettings(margin=0.1)
SYSTEM = "Which goods go where? Answer as JSON."
GOODS = ("chairs", "oak tables", "lamps", "garden hoses", "mugs", "red bicycles", "mirrors", "books")
TOWNS = ("Rome", "New York", "Oslo", "Bad Homburg", "Lima", "Kyoto", "Porto", "Cork")
FRAMES = (
    "please send {n} {goods} to {town}",
    "our shop in {town} wants {n} {goods}",
    "{n} {goods} for {town}, soon",
    "could {town} get {n} {goods} by friday?",
    "no goods today, thank you all in {town}",
)


def orders(seed: int, count: int) -> list[tuple[str, str]]:
    """Questions, no two alike, with their answers."""
    drawn, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        goods, town, number = drawn.choice(GOODS), drawn.choice(TOWNS), drawn.randrange(2, 5000)
        frame = drawn.choice(FRAMES)
        has_goods = "{goods}" in frame
        said = {"goods": goods if has_goods else None, "count": number if has_goods else None, "to": [town]}
        text = frame.format(n=number, goods=goods, town=town) + f" (order {len(found)} of {seed})"
        found[text] = json.dumps(said)
    return list(found.items())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        yield ExampleStore(database)


def collected(store: ExampleStore, count: int, seed: int = 0) -> str:
    task = ""
    for number, (question, answer) in enumerate(orders(seed, count)):
        said = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        more = {"messages": json.dumps(said).encode(), "question": question, "answer": answer}
        task = fill(store, 1, first=10_000 * seed + number, key="", **more)
    return task


def until(happened: Callable[[], Any]) -> Any:
    for _ in range(6000):
        if found := happened():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


# -- forms
# --------------------------------------------------------------------------------------------------

NAMES = ("Ann", "Bob Lee", "Cy", "Dee")
MET = [
    (f"{a} met {b} in {c}", a, b, c) for a in NAMES for b in ("Eve", "Flo Ray") for c in ("Rome", "New York")
]


def labeled(a: str, b: str, c: str) -> list[dict[str, str]]:
    return [{"text": a, "type": "who"}, {"text": b, "type": "who"}, {"text": c, "type": "where"}]


def tags(text: str, c: str) -> list[str]:
    return ["B-place" if one in c.split() else "O" for one in text.split()]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("object", lambda text, a, b, c: json.dumps({"who": [a, b], "where": c, "sure": True, "why": None})),
        ("object", lambda text, a, b, c: json.dumps({"where": c, "n": "none"}, indent=2)),
        ("object", lambda text, a, b, c: f"```json\n{json.dumps({'where': c})}\n```"),
        ("texts", lambda text, a, b, c: json.dumps([a, b, c], separators=(",", ":"))),
        ("labeled", lambda text, a, b, c: json.dumps(labeled(a, b, c))),
        ("labeled", lambda text, a, b, c: json.dumps({"entities": labeled(a, b, c)})),
        ("tags", lambda text, a, b, c: json.dumps(tags(text, c))),
        ("tag words", lambda text, a, b, c: " ".join(tags(text, c))),
    ],
)
def test_a_form_writes_its_answers_again(kind: str, answer: Callable[..., str]) -> None:
    pairs = [(text, answer(text, *parts)) for text, *parts in MET]
    form = learned_form(pairs)
    assert form.kind == kind
    for text, wanted in pairs:
        marks = form.marks(text, wanted)
        assert marks is not None and any(marks)
        assert form.write(text, form.words(text), marks) == wanted
    assert form.marks("Ann met Eve in Rome", answer("Ann met Eve in Rome", "Ann", "Eve", "Oslo")) is None or (
        kind.startswith("tag")  # a tag for each word says nothing of Oslo
    )


def test_answers_of_no_form_are_refused() -> None:
    for answers in (["yes", "no"], ["[1, [2]]", '{"a": {"b": 1}}'], ['"x"', "null"]):
        with pytest.raises(InvalidRequest, match="not made of parts of their questions"):
            learned_form([(f"question {n}", answers[n % 2]) for n in range(20)])
    with pytest.raises(InvalidRequest, match="no answer has a part"):
        form_and_marks([(f"question {n}", "[]") for n in range(20)])
    deep = "[" * 5000
    assert learned_form([*[(text, json.dumps([a])) for text, a, _, _ in MET], ("x", deep)]).kind == "texts"


def test_what_came_once_is_in_no_form() -> None:
    """Neither as a key, nor as a label or a constant."""
    pairs = [(text, json.dumps({"who": a})) for text, a, _, _ in MET]
    form = learned_form([*pairs, ("x", '{"my secret": "x"}'), ("y", '{"who": "hidden"}')])
    assert form.constants == ("null", "who")
    pairs = [(text, json.dumps(labeled(a, b, c))) for text, a, b, c in MET]
    assert "secret" not in learned_form([*pairs, ("x", '[{"text": "x", "type": "secret"}]')]).constants


def test_equal_parts_are_one_or_each_of_its_own() -> None:
    texts = [f"{a} or {a} or {b}" for a in NAMES for b in ("Eve", "Flo Ray")]
    for every in (False, True):
        said = [text.split(" or ") if every else list(dict.fromkeys(text.split(" or "))) for text in texts]
        form = learned_form([(text, json.dumps(one)) for text, one in zip(texts, said, strict=True)])
        assert form.kind == "texts" and form.every == every


# -- the head
# --------------------------------------------------------------------------------------------------


def test_words_have_the_states_of_their_tokens() -> None:
    states = np.eye(4, dtype=np.float32)
    found = features_of("big Cat", [(0, 3), (4, 7)], [(0, 1), (1, 3), (3, 3), (4, 7)], states)
    assert found.shape == (2, 19)
    np.testing.assert_allclose(found[0, :4], [2**-0.5, 2**-0.5, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(found[1, :4], [0, 0, 0, 1])
    np.testing.assert_allclose(found[1, 4:8], found[0, :4] / 2)
    assert not found[1, 8:12].any() and found[1, 12] and not found[0, 12]


def test_a_tagger_finds_what_it_has_not_seen() -> None:
    lessons, later = orders(1, 150), orders(2, 60)
    with reader(resolve("tagger", offline=True), 1) as reads:
        form, marks = form_and_marks(lessons)
        texts = reads(form, [text for text, _ in lessons])
        pairs = [(one, mark) for one, mark in zip(texts, marks, strict=True) if one and mark]
        assert len(pairs) == len(lessons)
        model = taught_tagger("tagger", form, pairs)
        assert model.writes and model.says == ("[]", "count", "goods", "null", "to")
        head = Tagger(model)
        said = [head.answer(one) for one in reads(form, [text for text, _ in later])]
        empty, long = reads(form, ["", "word " * 3000])
    right = [one.text == answer for one, (_, answer) in zip(said, later, strict=True)]
    assert sum(right) > 0.8 * len(later), sum(right)
    assert head.answer(empty).text is None and long is None and head.answer(long).text is None
    assert exposure_of(model, "s-1").problems == []
    assert "canary of the settings" in exposure_of(model, "s-1", ["GOODS"]).problems[0]
    with pytest.raises(CorruptFile, match="train it again"):
        head.answer(ReadText("x", [(0, 1)], np.zeros((1, 5), np.float32)))
    again = taught_tagger("tagger", form, pairs[:20])
    assert again.digest == taught_tagger("tagger", form, pairs[:20]).digest != model.digest


def test_the_rung_is_skipped_by_name(store: ExampleStore) -> None:
    """Without its model, where answers are no parts of questions, and where another is asked for."""
    task = fill(store, 250)
    folders = ModelFolders(tagger=str(resolve("tagger", offline=True)))
    _, card = train(store, task, SETTINGS, words)
    assert "is not there" in card.skipped["tagger"]
    _, card = train(store, task, SETTINGS, words, folders=folders, rung="head")
    assert card.rung == "head" and card.skipped["tagger"] == "head alone was asked for"
    assert [one.rung for one in card.report if one.tried] == ["head"] and list(card.rungs) == ["head"]
    with pytest.raises(InvalidRequest, match="tagger is not tried: answers are not made of parts"):
        train(store, task, SETTINGS, words, folders=folders, rung="tagger")


def test_a_tagger_from_its_lessons_to_its_promotion(tmp_path: Path, store: ExampleStore) -> None:
    models = [load_model(one, EngineOptions(threads=1)) for one in ("embed", "tagger")]
    known = dict(orders(7, 200)) | dict(orders(8, 200))
    with learning_server(tmp_path, lambda text: known.get(text, "[]"), *models, margin=0.1) as (
        server,
        _,
        _s,
    ):
        http, fresh = server.http(), iter(known)
        for _ in range(2):  # the task is that of real requests
            ask(server, next(fresh), SYSTEM)
        task = until(lambda: store.tasks())[0].id
        until(lambda: len(store.export()) == 2)
        collected(store, 250)
        store.database.execute("UPDATE examples SET task = ?", (task,))
        made = http.post("/v1/adapt/train", json={"task": task}, timeout=None)
        assert made.status_code == 200, made.text
        name, card = made.json()["student"], made.json()["card"]
        assert card["rung"] == "tagger" and card["share"] > 0.5, card
        assert card["lineage"] == {"tagger": "tagger"} and card["exposed"] == []
        [report] = [one for one in card["report"] if one["rung"] == "tagger"]
        assert report["score"] > 0.7 and report["seconds"] > 0 and report["bytes"] > 1000
        assert card["skipped"]["lora"].startswith("adapt.base names no model")
        assert http.post("/v1/adapt/shadow", json={"task": task}).status_code == 200
        registry = Registry(store.database)
        while not registry.students("ready"):
            ask(server, next(fresh), SYSTEM)
        promoted = http.post("/v1/adapt/promote", json={"task": task, "share": 1, "audit": 0.01})
        assert promoted.status_code == 200, promoted.text
        assert registry.student(task, "promoted").id == name
        targets: list[str] = []
        while targets.count(f"adapt/{name}") < 5:
            question = next(fresh)
            reply = ask(server, question, SYSTEM)
            targets.append(reply.headers["x-headrace-target"])
            if targets[-1] == "large":
                assert reply.json()["choices"][0]["message"]["content"] == known[question]
    for one in models:
        one.close()


# -- real data
# --------------------------------------------------------------------------------------------------


def tweets(file: Path) -> list[tuple[str, str]]:
    """Texts of WNUT17's development part, which no shipped model has learned, with their entities."""
    found: list[tuple[str, str]] = []
    for block in lzma.decompress(file.read_bytes()).decode().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if "\t" in line]
        parts: dict[str, list[str]] = {}
        for word, tag in ((row[0], row[-1].strip()) for row in rows):
            if tag[0] == "B":
                parts.setdefault(tag[2:], []).append(word)
            elif tag[0] == "I":
                parts[tag[2:]][-1] += f" {word}"
        if rows:
            kinds = ("person", "location", "product", "creative-work", "group", "corporation")
            said = {kind: parts.get(kind, []) for kind in kinds}
            found.append((" ".join(row[0] for row in rows), json.dumps(said, ensure_ascii=False)))
    return found


@pytest.mark.soak
def test_entities_of_tweets(shared_data: Path) -> None:
    """More than the shipped tagger finds with its own head (F1 0.28 of the whole part)."""
    pairs = tweets(shared_data / "ner" / "wnut17" / "dev.conll.xz")
    cut = int(len(pairs) * 0.6)
    with reader(resolve("tagger", offline=True), 1) as reads:
        form, marks = form_and_marks(pairs[:cut])
        texts = reads(form, [text for text, _ in pairs[:cut]])
        lessons = [(one, mark) for one, mark in zip(texts, marks, strict=True) if one and mark is not None]
        assert len(lessons) > 0.9 * cut
        head = Tagger(taught_tagger("tagger", form, [one for one in lessons if one[0].words]))
        said = [head.answer(one) for one in reads(form, [text for text, _ in pairs[cut:]])]
    hits, wrong, missed = entity_counts(said, pairs[cut:])
    assert 2 * hits / (2 * hits + wrong + missed) > 0.3, (hits, wrong, missed)


def entity_counts(said: list[Any], wanted: list[tuple[str, str]]) -> tuple[int, int, int]:
    counts = [0, 0, 0]
    for one, (_, answer) in zip(said, wanted, strict=True):
        found, known = (
            {(kind, part) for kind, parts in json.loads(text).items() for part in parts}
            for text in (one.text or "{}", answer)
        )
        for place, number in enumerate((len(found & known), len(found - known), len(known - found))):
            counts[place] += number
    return counts[0], counts[1], counts[2]


def test_a_form_is_stored(store: ExampleStore) -> None:
    form = learned_form([(text, json.dumps({"who": [a, b], "where": c})) for text, a, b, c in MET])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(form), type=AnswerForm) == form
