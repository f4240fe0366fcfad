"""A server that collects, in front of a provider that knows the answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fake import FakeModel
from fake_provider import Exchange, FakeProvider, delta, events, running_provider, usage
from in_process import Running, server_of

from headrace.adapt.schema import open_adapt
from headrace.adapt.traffic.examples import Example, ExampleStore
from headrace.adapt.traffic.fingerprint import Fingerprint
from headrace.gateway.text_vector import text_vector

ANSWERS = ("card", "transfer", "rate", "account", "pin")
FILLERS = ("money", "bank", "week", "shop", "friend", "phone", "number", "house", "train", "letter", "summer")
PRICE = {"input": 2.0, "output": 10.0}
"""Dollars a million tokens."""


def knows(answer: Callable[[str], str]) -> Any:
    """A reply of a provider: what `answer` says to the last message."""

    async def reply(exchange: Exchange) -> None:
        said = answer(exchange.body["messages"][-1]["content"])
        await exchange.begin()
        await exchange.send(
            events(delta(role="assistant", content=said), delta(finish="stop"), usage(100, 5))
        )

    return reply


@contextmanager
def learning_server(
    folder: Path, answer: Callable[[str], str], *models: Any, remote: Any = None, **adapt: Any
) -> Iterator[tuple[Running, FakeProvider, ExampleStore]]:
    """The server, its provider (model `large`), and what is collected; `models` are served, too."""
    keys = {name: adapt.pop(name) for name in ("api_key", "admin_api_key") if name in adapt}
    table = {"enabled": True, "keys": ["*"], "detector": "patterns", **adapt}
    with ExitStack() as stack:
        provider = stack.enter_context(running_provider(knows(answer)))
        local = FakeModel()
        local.engine.go.set()
        entries = {"large": {"provider": "work", "model": "far-1"}, **(remote or {})}
        flags: dict[str, Any] = {
            "remote": entries,
            "providers": {"work": {"dialect": "openai_chat", "base_url": provider.url}},
            "prices": {"work/far-1": PRICE},
            "store": str(folder / "store.sqlite3"),
            "adapt": table,
        }
        server = stack.enter_context(server_of(local, *models, **flags, **keys))
        database = open_adapt(folder / "store.sqlite3")
        stack.callback(database.close)
        yield server, provider, ExampleStore(database)


def ask(server: Running, text: str, system: str = "Sort the question.", **more: Any) -> Any:
    """The reply of the large model."""
    headers = more.pop("headers", {})
    body = {
        "model": "large",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
        **more,
    }
    reply = server.http().post("/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


def settled(store: ExampleStore, count: int) -> list[dict[str, Any]]:
    """What is kept, as soon as it is so much."""
    for _ in range(6000):
        if len(found := store.export()) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{len(store.export())} of {count} examples were kept: {store.dropped()}")


def fill(
    store: ExampleStore, count: int, *, first: int = 0, key: str = "k", wrong: float = 0.0, **more: Any
) -> str:
    """Put examples of one task into a store, as the collector would: five answers, told by a word of the
    question; a part of them is wrong. The task."""
    drawn = random.Random(first)
    print_ = Fingerprint(
        id="t-0123456789ab", group="g", endpoint="/v1/chat/completions", template="Sort.", tools=(), form=""
    )
    for number in range(first, first + count):
        answer = drawn.choice(ANSWERS)
        question = f"about {answer} and {drawn.choice(FILLERS)} {drawn.choice(FILLERS)} {number % 50}"
        given = {
            "reply_id": f"{key}-{number}",
            "request_id": f"{key}-{number}",
            "task": print_.id,
            "key_name": key,
            "at_s": time.time() - 1000 + number,
            "model": "large",
            "target": "large",
            "messages": b"[]",
            "question": question,
            "question_digest": question.encode(),
            "answer": drawn.choice(ANSWERS) if drawn.random() < wrong else answer,
            "outcome": "ok",
            "nano_usd": 1000,
            "first_token_s": None,
            "total_s": 1.0,
            "prompt_tokens": 1,
            "completion_tokens": 1,
        } | more
        store.add(print_, Example(**given), retention_s=1e9, max_of_key=100_000)
    return print_.id


def add_evidence(store: ExampleStore, values: Sequence[Any]) -> None:
    """A pair: student, example, key, group, difference, whether the student has answered."""
    store.database.execute(
        "INSERT INTO evidence (student, example, key_name, task_group, difference, is_answered) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        values,
    )


def words(texts: Sequence[str]) -> Any:
    """Vectors of words, for tests without a model."""
    return np.stack([text_vector(text) for text in texts])
