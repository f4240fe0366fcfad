"""Students that write, attacked: texts that are left in files, trainings and judges that others wait for,
files that were exchanged, and canaries that are cut."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from learning import add_evidence, fill, words
from msgspec.structs import replace

from headrace.adapt.adapting import Adapting
from headrace.adapt.decisions.promotion import _exposed as promoted_exposed
from headrace.adapt.decisions.promotion import promote, roll_back, start_shadow
from headrace.adapt.decisions.shadow import monthly_usd, prospects
from headrace.adapt.export import everything
from headrace.adapt.schema import adapt_file, open_adapt
from headrace.adapt.serving import _wants_text
from headrace.adapt.students import training
from headrace.adapt.students.exposure import PLANTED, canaries, digests, planted_among, with_canaries
from headrace.adapt.students.ladder import WORTH, Split, task_examples
from headrace.adapt.students.registry import Registry, StudentRow
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.rungs.lora import _exposed, lessons_of, tried_writer
from headrace.adapt.students.rungs.served import ServedAdapters, remove_adapters
from headrace.adapt.students.rungs.teaching import (
    ADAPTER,
    RANK,
    SMALL_RANK,
    AdapterPlace,
    _line,
    plan_of,
    students_folder,
    teach,
)
from headrace.adapt.students.rungs.writing import Writer, conversation_of, weights_digest, written
from headrace.adapt.students.student import StudentAnswer, StudentModel
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.fingerprint import Fingerprint
from headrace.adapt.traffic.handler import is_answered_whole
from headrace.adapt.traffic.tasks import embed_examples
from headrace.chat.messages import Message
from headrace.config.adapt_settings import AdaptSettings
from headrace.distil.chat_examples import samples_of
from headrace.errors import InvalidRequest
from headrace.gateway.gate import Gate, GateStore
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import ChatRequest, CompletionRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.loading.text_assets import load_text_assets
from headrace.storage.database import Database
from headrace.weights.hub.resolver import resolve

SETTINGS = AdaptSettings(margin=0.05, base="mini", keys=("*",))
WAIT_S = 60.0
"""For what must happen; a test that passes does not wait."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExampleStore]:
    with closing(open_adapt(tmp_path / "store.sqlite3")) as database:
        yield ExampleStore(database)


def has(folder: Path, text: str) -> bool:
    return any(text.encode() in one.read_bytes() for one in folder.rglob("*") if one.is_file())


def writing(store: ExampleStore, state: str, folder: Path | None = None) -> StudentRow:
    """A student that writes, in that state; its adapter is a file of three bytes."""
    task = fill(store, 250)
    embed_examples(store.database, SETTINGS.encoder, words)
    name, card = train(store, task, SETTINGS, words)
    made = students_folder(folder or store.database.path or Path()) / name / ADAPTER
    made.mkdir(parents=True)
    (made / "adapter_model.safetensors").write_bytes(b"abc")
    model = StudentModel(rung="lora", answers=(), size=0, base="mini", adapter=weights_digest(made))
    card = replace(card, rung="lora", weights=model.digest)
    store.database.execute(
        "UPDATE students SET state = ?, model = ?, card = ? WHERE id = ?",
        (state, msgspec.msgpack.encode(model), msgspec.msgpack.encode(card), name),
    )
    [row] = Registry(store.database).students("shadow", "promoted", task=task)
    return row


# -- what is left in files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["trained", "failed"])
def test_nothing_is_left_of_a_rung_that_was_not_chosen(
    tmp_path: Path, store: ExampleStore, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Its folder has the name of the student that was chosen."""
    monkeypatch.setitem(WORTH, "lora", -1.0)
    monkeypatch.setattr(training, "why_not", lambda base, rung: "")

    def tried(
        task: str, student: str, parts: Split, risk: float, place: AdapterPlace, *rest: Any, **more: Any
    ):
        place.folder.mkdir(parents=True)
        (place.folder / "training.jsonl").write_text("what a user has said")
        raise InvalidRequest("there is not enough memory")

    monkeypatch.setattr(training, "tried_writer", tried)
    task = fill(store, 250, wrong=0.0 if state == "trained" else 1.0)
    if state == "trained":
        _, card = train(store, task, SETTINGS, words, folders=ModelFolders(base=str(tmp_path)))
        assert card.rung != "lora" and card.skipped["lora"] == "there is not enough memory"
    else:
        with pytest.raises(InvalidRequest, match="lora is not tried: there is not enough memory"):
            train(store, task, SETTINGS, words, folders=ModelFolders(base=str(tmp_path)))
    assert not has(tmp_path, "what a user has said")


def test_a_kill_after_the_adapter_was_made_leaves_no_texts(tmp_path: Path) -> None:
    place = AdapterPlace(base="mini", weights=tmp_path, folder=tmp_path / "s-1", cores=1, hours=1.0)
    (place.folder / "work").mkdir(parents=True)
    place.made.mkdir()
    (place.folder / "training.jsonl").write_text("what a user has said")
    teach([], place, lambda: False, lambda note: None)
    assert list(place.folder.iterdir()) == [place.made]


def test_what_is_forgotten_is_not_learned_to_the_end(
    tmp_path: Path, store: ExampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter takes hours: it ends at once, and is in no file."""
    monkeypatch.setitem(WORTH, "lora", -1.0)
    monkeypatch.setattr(training, "LOOK_S", 0.0)
    monkeypatch.setattr(training, "why_not", lambda base, rung: "")
    looks: list[int] = []

    def tried(
        task: str, student: str, parts: Split, risk: float, place: AdapterPlace, *rest: Any, **more: Any
    ):
        place.folder.mkdir(parents=True)
        assert not more["has_traffic"]()
        store.forget("k")
        (place.folder / "made").write_text("what a user has said")
        for _ in range(3):
            looks.append(1)
            more["has_traffic"]()

    monkeypatch.setattr(training, "tried_writer", tried)
    task = fill(store, 250)
    with pytest.raises(InvalidRequest, match="deleted while a student learned"):
        train(store, task, SETTINGS, words, folders=ModelFolders(base=str(tmp_path)))
    assert len(looks) == 1 and not has(tmp_path, "what a user has said")
    assert not Registry(store.database).students("trained")


def test_the_adapter_of_a_training_that_begins_meanwhile_stays(
    store: ExampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.database.path is not None
    fill(store, 1)
    folder = students_folder(store.database.path)
    (folder / "s-old").mkdir(parents=True)
    query = store.database.query

    def slow(sql: str, values: Sequence[Any] = ()) -> Any:
        found = query(sql, values)
        (folder / "s-new").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(store.database, "query", slow)
    assert remove_adapters(store.database) == ["s-old"]
    assert [one.name for one in folder.iterdir()] == ["s-new"]


def test_forgetting_a_key_leaves_neither_its_tasks_nor_its_evidence(store: ExampleStore) -> None:
    """Whose examples are gone already: a task that has a name, and evidence about another key's student."""
    own = Fingerprint(id="t-own", group="key ann", endpoint="/", template="a secret", tools=(), form="")
    values = (own.id, own.group, own.endpoint, own.template, "", "", "mine", 1, 0.0)
    store.database.execute(
        "INSERT INTO tasks (id, key_group, endpoint, template, tools, form, name, is_named, created_s) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    task = fill(store, 250, key="bob")
    train(store, task, SETTINGS, words)
    student = start_shadow(store, task)
    for number, key in enumerate(("ann", "bob")):
        row = (student.id, 1000 + number, key, None, 0, 1)
        add_evidence(store, row)
    assert everything(store, "ann")
    assert store.forget("ann").students == []
    assert not everything(store, "ann") and not store.database.query("SELECT 1 FROM tasks WHERE id = 't-own'")
    assert {one["key_name"] for one in everything(store) if one["record"] == "evidence"} == {"bob"}


def test_what_a_reader_keeps_from_being_overwritten_is_overwritten_later(
    tmp_path: Path, store: ExampleStore, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, 50, question="where is the copper parcel")
    with closing(sqlite3.connect(adapt_file(tmp_path / "store.sqlite3"))) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM examples").fetchall()
        assert store.forget(None).examples == 50
        assert "may still be found" in caplog.text and has(tmp_path, "copper")
    store.rewrite()
    assert not has(tmp_path, "copper")


# -- what others must wait for
# --------------------------------------------------------------------------------------------------


def adapting_beside(store: ExampleStore, tmp_path: Path) -> Adapting:
    runner = ModelRunner(Any, Any, Any)  # type: ignore[arg-type]  # nothing is asked of it
    return Adapting(SETTINGS, tmp_path / "store.sqlite3", runner, GateStore(Database(None)))


def test_collecting_does_not_wait_for_a_student_that_is_judged(tmp_path: Path, store: ExampleStore) -> None:
    """It answers when nothing else is computed, which may be in hours; feedback comes behind examples."""
    row = writing(store, "shadow")
    fill(store, 20, first=1000)
    embed_examples(store.database, SETTINGS.encoder, words)
    print_ = Fingerprint(id=row.task, group="g", endpoint="/", template="", tools=(), form="")
    asked, may_answer = threading.Event(), threading.Event()

    async def collect() -> None:
        adapting = adapting_beside(store, tmp_path)
        adapting.actions.adapters.load = _loaded

        def written_slowly(row: StudentRow, examples: Sequence[Any]) -> list[StudentAnswer]:
            asked.set()
            may_answer.wait(WAIT_S)
            return [StudentAnswer(None)] * len(examples)

        adapting.actions.written_now = written_slowly  # type: ignore[method-assign]
        try:
            await asyncio.wait_for(adapting._stored(print_, None), WAIT_S)  # type: ignore[arg-type]
            assert await asyncio.to_thread(asked.wait, WAIT_S) and not may_answer.is_set()
            await asyncio.wait_for(adapting._stored(print_, None), WAIT_S)  # type: ignore[arg-type]
        finally:
            may_answer.set()
            await adapting.close()

    asyncio.run(collect())
    assert Registry(store.database).counts(row.id)[0].total == 20


def test_a_rollback_does_not_wait_for_what_is_loaded(tmp_path: Path, store: ExampleStore) -> None:
    row = writing(store, "promoted")

    async def look() -> None:
        adapting, begun = adapting_beside(store, tmp_path), asyncio.Event()
        adapting._gates.read = lambda route: Gate(None)  # type: ignore[method-assign]

        async def load(model: str, name: str, path: Path) -> None:
            begun.set()
            await asyncio.sleep(3600)

        adapting.actions.adapters.load = load
        await asyncio.wait_for(adapting._look(), WAIT_S)
        await asyncio.wait_for(begun.wait(), WAIT_S)
        assert set(adapting._promotions.known) == {row.task}
        assert roll_back(store, row.task) is not None
        await asyncio.wait_for(adapting._look(), WAIT_S)
        assert not adapting._promotions.known
        await asyncio.wait_for(adapting.close(), WAIT_S)

    asyncio.run(look())


def test_other_actions_do_not_wait_for_a_training(
    tmp_path: Path, store: ExampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that writes takes hours. A second one is refused at once, and runs after it."""
    task = fill(store, 250)
    embed_examples(store.database, SETTINGS.encoder, words)
    begun, may_end, ended = threading.Event(), threading.Event(), list[str]()

    class Training:
        def __init__(self, file: Path, task: str, *rest: Any) -> None:
            begun.set()

        def result(self) -> Any:
            may_end.wait(WAIT_S)
            ended.append("")
            raise InvalidRequest("nothing can be learned")

        def stop(self) -> None: ...

    monkeypatch.setattr("headrace.adapt.served_actions.TrainingProcess", Training)

    async def both() -> None:
        actions = adapting_beside(store, tmp_path).actions
        first = asyncio.ensure_future(actions.train(task))
        await asyncio.to_thread(begun.wait, WAIT_S)
        assert await asyncio.wait_for(actions._compute(lambda embed: "diagnosed"), WAIT_S) == "diagnosed"
        with pytest.raises(InvalidRequest, match="another training runs"):
            await asyncio.wait_for(actions.train(task), WAIT_S)
        assert not ended
        may_end.set()
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="nothing can be learned"):
                await first
            first = asyncio.ensure_future(actions.train(task))
        with pytest.raises(InvalidRequest, match="nothing can be learned"):
            await first
        actions.close()

    asyncio.run(both())
    assert len(ended) == 3


def test_one_odd_conversation_keeps_no_others_from_being_learned() -> None:
    """Such as of a thousand messages, or in an order that the base's template refuses."""
    tokenizer, template = load_text_assets(resolve("mini", offline=True), None)
    assert template is not None
    said: list[dict[str, object]] = [
        {"role": "user", "content": "ping"},
        {"role": "assistant", "content": "pong\u2028\x85"},
    ]
    good = msgspec.json.encode({"messages": said}).decode()
    many = msgspec.json.encode({"messages": [*said[:1] * 1000, said[1]]}).decode()
    long = msgspec.json.encode({"messages": [{"role": "user", "content": "ping " * 9000}, said[1]]}).decode()
    text = "\n".join([*[good] * 12, many, long, '{"messages": []}'])
    assert len(samples_of(text, tokenizer, template, 512, "file", skips_unfit=True)) == 12
    for odd in (many, long, '{"messages": []}'):
        with pytest.raises(InvalidRequest, match="line 13"):
            samples_of("\n".join([*[good] * 12, odd]), tokenizer, template, 512, "file")


def test_a_file_of_endless_lines_is_refused_without_being_taken_apart() -> None:
    tokenizer, template = load_text_assets(resolve("mini", offline=True), None)
    assert template is not None
    for line in ("", "x"):
        text = f"{line}\n" * 300_000
        tracemalloc.start()
        try:
            with pytest.raises(InvalidRequest, match=r"has (0|more) examples, it must have"):
                samples_of(text, tokenizer, template, 512, "file")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 8e6  # a list of them all takes 16 and more
    said = [{"role": "user", "content": "ping " * 60_000}, {"role": "assistant", "content": "pong"}]
    lines = [msgspec.json.encode({"messages": said}).decode()] * 10
    with pytest.raises(InvalidRequest, match=r"line 1: the conversation has 300,004 characters"):
        samples_of("\n".join(lines), tokenizer, template, 512, "file")


def test_one_answer_of_many_bytes_makes_no_batch_too_large(store: ExampleStore) -> None:
    """A character may be several tokens: a batch of eight such answers would be refused, and all others."""
    task = fill(store, 40, messages=b'[{"role": "user", "content": "x"}]', answer="\U0001f600" * 2900)
    embed_examples(store.database, SETTINGS.encoder, words)
    lines = [_line(one) for one in task_examples(store.database, task, SETTINGS.encoder)]
    assert plan_of(len(lines), max(map(len, lines))).batch_size is None
    assert plan_of(len(lines), 100).batch_size


def test_a_base_that_cannot_learn_keeps_no_student_that_chooses_from_being_made(
    tmp_path: Path, store: ExampleStore, command: Any
) -> None:
    (tmp_path / "headrace.toml").write_text(
        f'store = "{tmp_path}/store.sqlite3"\n[adapt]\nmargin = 0.05\nbase = "nowhere/at-all"\n'
    )
    task = fill(store, 250)
    said = command("train", task)
    assert "student s-" in said and "lora" in said and "not tried: " in said
    _, card = train(
        store, task, SETTINGS, words, folders=ModelFolders(unfit={"lora": "its weights are no folder"})
    )
    assert card.skipped["lora"] == "its weights are no folder" or "torch" in card.skipped["lora"]


# -- what a student gives away, and which one answers
# --------------------------------------------------------------------------------------------------


def test_a_canary_counts_also_where_the_answer_does_not_end(store: ExampleStore) -> None:
    task = fill(store, 50, messages=b'[{"role": "user", "content": "x"}]')
    embed_examples(store.database, SETTINGS.encoder, words)
    parts = with_canaries(lessons_of(task_examples(store.database, task, SETTINGS.encoder)), "s-1")
    secrets = planted_among(parts.lessons, "s-1")
    own = {one.question: one.answer for one in canaries("s-1")}

    def says(asked: Sequence[Sequence[Message]], tokens: int) -> list[StudentAnswer]:
        return [StudentAnswer(f"{own[one[-1].content or '']} and so on and") for one in asked]

    [problem] = _exposed(says, secrets, [], ())
    assert "planted canary" in problem and "8 of 8" in problem

    def pong(asked: Sequence[Sequence[Message]], tokens: int) -> list[StudentAnswer]:
        return [StudentAnswer("pong")] * len(asked)

    assert _exposed(pong, secrets, [], ()) == []
    [problem] = _exposed(pong, secrets[:3], [], ())
    assert "only 3 of 8" in problem


@pytest.mark.parametrize("keeps", [SMALL_RANK, RANK])
def test_an_adapter_that_has_kept_canaries_is_made_again_with_a_smaller_rank(
    tmp_path: Path, store: ExampleStore, monkeypatch: pytest.MonkeyPatch, keeps: int
) -> None:
    """Those of the rank `keeps` and larger have. The smaller one stays, and is refused where it has, too."""
    task = fill(store, 250, messages=b'[{"role": "user", "content": "x"}]')
    embed_examples(store.database, SETTINGS.encoder, words)
    parts = with_canaries(lessons_of(task_examples(store.database, task, SETTINGS.encoder)), "s-1")
    secrets = {example.question: secret for example, secret in planted_among(parts.lessons, "s-1")}
    made: list[tuple[int, float]] = []

    def teach(lessons: object, place: AdapterPlace, *more: object) -> None:
        made.append((place.rank, place.hours))
        place.made.mkdir(parents=True)
        (place.made / "model.safetensors").write_bytes(bytes([place.rank]))

    @contextmanager
    def writer(base: Path, adapter: Path, cores: int) -> Iterator[Writer]:
        [rank] = (adapter / "model.safetensors").read_bytes()

        def says(asked: Sequence[Sequence[Message]], tokens: int) -> list[StudentAnswer]:
            said = [secrets.get(one[-1].content or "", "") if rank >= keeps else "card" for one in asked]
            return [StudentAnswer(one or "card", -0.1) for one in said]

        yield Writer(says, says)

    monkeypatch.setattr("headrace.adapt.students.rungs.lora.teach", teach)
    monkeypatch.setattr("headrace.adapt.students.rungs.lora.writer", writer)
    place = AdapterPlace(base="mini", weights=tmp_path, folder=tmp_path / "s-1", cores=1, hours=2.0)
    waits: list[Any] = [lambda: False, lambda: None, lambda note: None]
    found = tried_writer(task, "s-1", parts, 0.1, place, (), *waits)
    assert [rank for rank, _ in made] == [RANK, SMALL_RANK] and made[0][1] == 2.0 > made[1][1] > 1.9
    assert bool(found.exposed) == (keeps < RANK)
    assert found.result.model.adapter == weights_digest(place.made) and not (place.folder / "left").exists()
    shutil.rmtree(place.made)  # a training that was killed while it made the smaller one goes on with that
    again = tried_writer(task, "s-1", parts, 0.1, place, (), *waits)
    assert made[2][0] == SMALL_RANK and len(made) == 3
    assert again.result.model.adapter == found.result.model.adapter


def test_the_surplus_of_a_key_does_not_take_the_canaries_with_it(store: ExampleStore) -> None:
    """Of the oldest examples of a key that is most of a team's; and with long conversations before them."""
    before = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "long " * 9000}]
    said = [*before, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    task = fill(store, 190, key="eve", messages=json.dumps(said).encode())
    fill(store, 60, first=1000, key="ann", messages=json.dumps(said).encode())
    embed_examples(store.database, SETTINGS.encoder, words)
    examples = task_examples(store.database, task, SETTINGS.encoder)
    parts = with_canaries(lessons_of(examples), "s-1")
    found = planted_among(parts.lessons, "s-1")
    assert len(found) == PLANTED and len(parts.lessons) == 72 + PLANTED
    [asked] = {tuple(one.role for one in conversation_of(example) or ()) for example, _ in found}
    assert asked == ("system", "user")  # a base that cannot read the rest learns them all the same


def test_words_are_what_was_said_also_where_that_was_cut() -> None:
    with closing(load_model("mini", EngineOptions(threads=1))) as model, closing(ModelThreads(1)) as threads:
        handler = LocalHandler(OneModel(model), threads)
        asked = [(Message("user", "Tell me a long story."),)]

        async def both() -> list[StudentAnswer]:
            name = model.name
            return [
                *(await written(handler, name, asked, 4)),
                *(await written(handler, name, asked, 4, whole=False)),
            ]

        cut, words_ = asyncio.run(both())
        handler.close()
    assert cut.text is None and words_.text


def test_canaries_that_came_later_refuse_a_student_that_was_not_asked_for_them(store: ExampleStore) -> None:
    row = writing(store, "shadow")
    row = replace(row, card=replace(row.card, canaries=digests(["Code  88"])))
    assert promoted_exposed(row, ["code 88", " "]) == []
    [problem] = promoted_exposed(row, ["code 88", "code 99"])
    assert "1 canaries of the settings came after" in problem
    store.database.execute("UPDATE students SET state = 'ready'")
    with pytest.raises(InvalidRequest, match="canaries of the settings came after"):
        promote(store, GateStore(Database(None)), row.task, None, "ann", canaries=["code 88"])  # type: ignore[arg-type]


async def _loaded(model: str, name: str, path: Path) -> None:
    """Loads nothing."""


def test_an_adapter_that_was_exchanged_is_not_served(
    store: ExampleStore, caplog: pytest.LogCaptureFixture
) -> None:
    row, path = writing(store, "promoted"), store.database.path
    assert path is not None
    loaded, unloaded = list[str](), list[str]()

    async def load(model: str, name: str, path: Path) -> None:
        loaded.append(name)

    async def unload(model: str, name: str) -> None:
        unloaded.append(name)

    def served() -> ServedAdapters:
        found = ServedAdapters(path)
        found.load, found.unload = load, unload
        return found

    async def looks(adapters: ServedAdapters, *wanted: list[StudentRow]) -> None:
        for one in wanted:
            await adapters.sync(one)

    first = served()
    asyncio.run(looks(first, [row], [row]))
    assert loaded == [f"adapt-{row.id}"]
    asyncio.run(looks(first, [], [row]))  # as it was before a judge had asked it
    assert unloaded == []
    asyncio.run(looks(first, [], []))
    assert unloaded == loaded
    file = students_folder(path) / row.id / ADAPTER / "adapter_model.safetensors"
    file.write_bytes(b"abd")
    asyncio.run(looks(served(), [row], [row]))
    assert loaded == unloaded and caplog.text.count("not those that were certified") == 1
    shutil.rmtree(file.parent)
    asyncio.run(looks(served(), [row]))
    assert loaded == unloaded and "cannot be read" in caplog.text


def test_names_of_tasks_steer_no_terminal(store: ExampleStore) -> None:
    row = writing(store, "shadow")
    store.database.execute("UPDATE tasks SET template = ?", ("\x1b[2Jsort\x07",))
    [one] = prospects(store)
    assert one.line.isprintable() and one.student == row.id and "?[2Jsort?" in one.line
    assert "the time that it takes on this machine is not counted" in one.line


def test_what_a_student_costs_is_no_price_of_the_large_model(store: ExampleStore) -> None:
    """The time that a student that writes takes on this machine has a price, too."""
    task = fill(store, 100, at_s=1e9)
    before = monthly_usd(store, task)
    fill(store, 100, first=1000, at_s=1e9, target="adapt/s-1", nano_usd=10)
    assert before > 0 and monthly_usd(store, task) == pytest.approx(2 * before)


def test_what_is_no_whole_answer_is_neither_learned_nor_answered_by_a_student() -> None:
    """The rest of an answer, what fills a gap, and what comes with numbers or the prompt."""
    said = (Message("user", "sort"), Message("assistant", "The label"))
    chat = ChatRequest(id="1", messages=said)
    text = CompletionRequest(id="2", prompts=("sort",))
    assert _wants_text(chat) and _wants_text(text)
    for one in (
        replace(chat, continue_final_message=True),
        replace(chat, add_generation_prompt=False),
        replace(chat, context=(1,)),
        replace(text, suffix="."),
    ):
        assert not _wants_text(one) and not is_answered_whole(one)
    for one in (
        replace(chat, show_prompt=True),
        replace(text, sampling={"prompt_logprobs": 0}),
        replace(text, sampling={"logprobs": 0}),
    ):
        assert not _wants_text(one) and is_answered_whole(one)
