"""The whole loop: one of several tasks is learned; its student is judged, answers, and is rolled back."""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from learning import ask, learning_server, settled

from headrace.adapt.decisions.shadow import prospects
from headrace.adapt.students.registry import Registry
from headrace.adapt.traffic.examples import ExampleStore
from headrace.llm import LLM
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.database import Database

INTENTS = {
    "card_lost": ["I lost my {card} {when}", "my {card} was stolen {when}", "somebody took my {card} {when}"],
    "transfer_failed": [
        "the transfer to my {who} failed {when}",
        "money that I sent my {who} came back {when}",
    ],
    "pin_change": ["how do I change the PIN of my {card}", "I want another PIN for the {card} from {when}"],
    "exchange_rate": ["what is the exchange rate for {money} {when}", "how much are {money} in euros {when}"],
    "close_account": [
        "please close my account {when}",
        "I want to leave the bank {when}, and so does my {who}",
    ],
}
WORDS = {
    "card": ["card", "credit card", "debit card", "bank card", "blue card", "second card", "gold card"],
    "when": ["yesterday", "today", "last week", "in the shop", "on the train", "this morning", "at noon"],
    "who": ["mother", "landlord", "sister", "friend", "neighbor", "doctor", "employer", "brother"],
    "money": ["dollars", "yen", "pounds", "francs", "crowns", "pesos", "rupees"],
}
SORT = "Sort the question of {date}. Answer with one label."
NANO = 100 * 2000 + 5 * 10_000
"""Of each answer of the large model: 100 tokens in, 5 out."""


def questions(seed: int, count: int) -> list[tuple[str, str]]:
    """Questions and their intents."""
    drawn, found = random.Random(seed), list[tuple[str, str]]()
    for _ in range(count):
        intent = drawn.choice(list(INTENTS))
        words = {name: drawn.choice(values) for name, values in WORDS.items()}
        found.append((drawn.choice(INTENTS[intent]).format(**words), intent))
    return found


class Large:
    """Knows every answer, until the labels change."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.labels = {intent: intent for intent in INTENTS}

    def learn(self, several: list[tuple[str, str]]) -> list[str]:
        self.known |= dict(several)
        return [text for text, _ in several]

    def __call__(self, text: str) -> str:
        intent = self.known.get(text)
        return self.labels[intent] if intent else f"Here is a long and friendly answer about {text}"


@pytest.fixture(scope="module")
def embed() -> Iterator[Any]:
    model = load_model("embed", EngineOptions(threads=1))
    yield model
    model.close()


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("embed") as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    """Commands of this file load no model of their own; those of test_collecting.py do."""
    for name in ("tasks", "opened"):
        module = importlib.import_module(f"headrace.cli.adapt.{name}")
        monkeypatch.setattr(module, "loaded", lambda encoder, settings: nullcontext(llm))


def send(server: Any, texts: list[str], day: int = 1) -> list[str]:
    """Ask the large model; which target has answered."""
    with ThreadPoolExecutor(4) as pool:
        replies = pool.map(lambda text: ask(server, text, SORT.format(date=f"2026-11-{day:02}")), texts)
        return [one.headers["x-headrace-target"] for one in replies]


def spent(folder: Path) -> int:
    """By the ledger: of all attempts so far."""
    database = Database(folder / "store.sqlite3")
    [(total,)] = database.query(
        "SELECT coalesce(sum(nano_usd), 0) FROM ledger_entries WHERE kind = 'attempt'"
    )
    database.close()
    return int(total)  # type: ignore[call-overload]


def until(happened: Callable[[], Any], what: str) -> Any:
    for _ in range(6000):
        if found := happened():
            return found
        time.sleep(0.02)
    raise AssertionError(what)


def state_of(store: ExampleStore, task: str) -> str:
    return str(
        store.database.query("SELECT state FROM students WHERE task = ? ORDER BY created_s DESC", (task,))[0][
            0
        ]
    )


def settings_file(folder: Path, url: str) -> None:
    """What the commands read, as the server has it."""
    (folder / "headrace.toml").write_text(
        f"""
store = "{folder}/store.sqlite3"
[adapt]
enabled = true
keys = ["*"]
margin = 0.05
[providers.work]
dialect = "openai_chat"
base_url = "{url}"
[models.large]
provider = "work"
model = "far-1"
"""
    )


def test_a_task_is_learned_promoted_and_rolled_back(tmp_path: Path, embed: Any, command: Any) -> None:
    large = Large()
    with learning_server(tmp_path, large, embed, margin=0.05) as (server, provider, store):
        settings_file(tmp_path, provider.url)
        for text in ("write a poem", "what is love", "tell me more"):
            ask(server, text, "You are a friend.")
        send(server, large.learn(questions(1, 230)))
        settled(store, 233)

        tasks = json.loads(command("tasks", "--json"))
        assert [one["examples"] for one in tasks] == [230, 3]  # found, by structure
        task = tasks[0]["id"]
        found = json.loads(command("diagnose", task, "--json"))
        assert found["rungs"][2]["right"] > 0.9 and not found["missing"], found
        hopeless = json.loads(command("diagnose", tasks[1]["id"], "--json"))
        assert "more" in hopeless["missing"] and not hopeless["rungs"]
        assert "are needed at least" in command("train", tasks[1]["id"], code=1)

        trained = json.loads(command("train", task, "--json"))
        assert trained["card"]["keys"] == {"": trained["card"]["lessons"]} and trained["card"]["share"] > 0.5
        assert "has no student that is ready" in command("promote", task, code=1)
        assert json.loads(command("shadow", task, "--json"))["standing"] == "open"

        later = 0
        while state_of(store, task) != "ready":  # the server judges it by what comes
            send(server, large.learn(questions(100 + later, 60)), day=2)
            later += 1
            assert later < 40, prospects(store)  # a slow machine judges later
            time.sleep(0.3)
        [prospect] = prospects(store)
        assert prospect.lower > -0.05 and "is ready" in command("status")
        assert set(send(server, large.learn(questions(7, 8)), day=3)) == {"large"}  # nobody has decided yet

        promoted = json.loads(command("promote", task, "--share", "1", "--audit", "0.3", "--json"))
        assert promoted["student"] == trained["student"]
        until(
            lambda: send(server, large.learn(questions(8, 1)))[0].startswith("adapt/"), "it does not answer"
        )
        named = {"model": "adapt/" + promoted["student"], "messages": [{"role": "user", "content": "x"}]}
        assert server.http().post("/v1/chat/completions", json=named).status_code == 404
        before = spent(tmp_path)
        asked = questions(9, 80)
        answered = send(server, large.learn(asked), day=4)
        share = sum(one.startswith("adapt/") for one in answered) / len(answered)
        until(
            lambda: spent(tmp_path) - before >= (1 - share - 0.01) * 80 * NANO, "what is spent is not known"
        )
        time.sleep(1)  # audits come after the replies
        cost = (spent(tmp_path) - before) / (80 * NANO)
        # The stated saving is before audits, which are 30 % here, and fewer where the machine is busy.
        assert share > prospect.answered - 0.2
        assert cost < min(1.0, 1 - share + 0.3 * share + 0.2)
        reply = ask(server, asked[0][0], SORT.format(date="2026-11-05"))
        assert reply.json()["model"] == "large" and reply.json()["choices"][0]["logprobs"] is None

        large.labels = {intent: f"{intent}_v2" for intent in INTENTS}  # traffic drifts
        for turn in range(100):
            send(server, large.learn(questions(200 + turn, 20)), day=6)
            time.sleep(0.2)
            if state_of(store, task) == "rolled_back":
                break
        assert state_of(store, task) == "rolled_back"
        after = questions(10, 5)
        until(lambda: set(send(server, large.learn(after))) == {"large"}, "it still answers")
        reply = ask(server, after[0][0], SORT.format(date="2026-11-07"))
        assert reply.json()["choices"][0]["message"]["content"].endswith("_v2")
        record = [(one.what, one.who != "headrace") for one in Registry(store.database).decisions(task)]
        expected = [("trained", False), ("shadow", True), ("ready", False), ("promoted", True)]
        assert record == [*expected, ("rolled_back", False)]
        assert "has no promoted student" in command("rollback", task, code=1)


def test_a_student_of_corrupted_labels_is_never_proposed(tmp_path: Path, embed: Any, command: Any) -> None:
    """Its data were mixed up after they were collected: they certify it, and real traffic does not."""
    large, drawn = Large(), random.Random(3)
    with learning_server(tmp_path, large, embed, margin=0.05) as (server, provider, store):
        settings_file(tmp_path, provider.url)
        send(server, large.learn(questions(1, 230)))
        settled(store, 230)
        shuffled = list(INTENTS)
        drawn.shuffle(shuffled)
        names = dict(zip(INTENTS, [*shuffled[1:], shuffled[0]], strict=True))
        for intent, wrong in names.items():
            store.database.execute("UPDATE examples SET answer = ? WHERE answer = ?", (f"~{wrong}", intent))
        store.database.execute("UPDATE examples SET answer = substr(answer, 2) WHERE answer LIKE '~%'")
        task = store.tasks()[0].id
        command("train", task)
        command("shadow", task)
        for turn in range(3):
            send(server, large.learn(questions(50 + turn, 40)))
        until(lambda: state_of(store, task) == "inferior", "it is still judged")
        assert "is inferior" in command("promote", task, code=1)


@pytest.mark.nightly
def test_random_labels_certify_nothing(tmp_path: Path, embed: Any, command: Any) -> None:
    large, drawn = Large(), random.Random(4)
    with learning_server(tmp_path, large, embed, margin=0.05) as (server, provider, store):
        settings_file(tmp_path, provider.url)
        mixed = [(text, drawn.choice(list(INTENTS))) for text, _ in questions(1, 230)]
        send(server, large.learn(mixed))
        settled(store, 230)
        assert "can be certified" in command("train", store.tasks()[0].id, code=1)
