"""Two servers behind one address with a common PostgreSQL: what one keeps the other has."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from cluster.fronts import Front, environment, front
from headrace.api.http.api_keys import REFRESH_S
from postgres_server import running_postgres

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")


@pytest.fixture(scope="module")
def ledger() -> Iterator[str]:
    with running_postgres() as found:
        yield found.url


def until(found: Callable[[], bool], seconds: float = 60) -> None:
    end_s = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def in_background(client: openai.OpenAI, count: int) -> list[str]:
    """Ids of long responses."""
    more: dict[str, Any] = {"background": True, "max_output_tokens": 1000, "extra_body": {"ignore_eos": True}}
    return [client.responses.create(model="nano", input="a", **more).id for _ in range(count)]


def new_database(ledger: str) -> str:
    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(ledger, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return ledger.replace("/postgres?", f"/{name}?")


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, client_encoding="utf8") as connection:
        return connection.execute(sql.encode()).fetchall()


def completed(client: openai.OpenAI, batch: str) -> int:
    counts = client.batches.retrieve(batch).request_counts
    assert counts is not None
    return counts.completed


def lines_of(count: int, **more: object) -> bytes:
    body = {"model": "nano", "prompt": "Once", "max_tokens": 200, "ignore_eos": True, **more}
    return b"\n".join(
        json.dumps(
            {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": {**body, "seed": n}}
        ).encode()
        for n in range(count)
    )


@pytest.fixture(scope="module")
def fronts(ledger: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Front]]:
    folder = tmp_path_factory.mktemp("fronts")
    with front(folder / "a", ledger) as one, front(folder / "b", ledger) as other:
        yield one, other


def test_a_response_is_continued_read_and_deleted_at_the_other(fronts: tuple[Front, Front]) -> None:
    one, other = (each.openai() for each in fronts)
    first = one.responses.create(model="nano", input="Once upon a time", max_output_tokens=16)
    second = other.responses.create(
        model="nano", input="and then", previous_response_id=first.id, max_output_tokens=16
    )
    assert other.responses.retrieve(first.id).output_text == first.output_text
    assert one.responses.retrieve(second.id).output_text == second.output_text
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    other.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        one.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        one.responses.create(model="nano", input="x", previous_response_id=first.id)


def test_a_file_is_read_listed_and_deleted_at_the_other(fronts: tuple[Front, Front]) -> None:
    one, other = (each.openai() for each in fronts)
    content = bytes(range(256)) * 5000
    file = one.files.create(file=("x.bin", content), purpose="user_data")
    assert other.files.content(file.id).read() == content
    assert file.id in [each.id for each in other.files.list()]
    other.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        one.files.content(file.id)


def test_a_key_is_of_both_and_is_revoked_at_both(fronts: tuple[Front, Front], ledger: str) -> None:
    one, other = fronts

    def keys(*words: str) -> str:
        command = [sys.executable, "-m", "headrace", "keys", *words, "--fronts", "2"]
        done = subprocess.run(command, env=environment(ledger), capture_output=True, text=True, check=True)
        return done.stdout.strip()

    key = keys("add", "alice")
    time.sleep(REFRESH_S)  # they read keys for batches, too, perhaps just before
    file = one.openai(key).files.create(file=("x", b"abc"), purpose="user_data")
    assert other.openai(key).files.content(file.id).read() == b"abc"
    with pytest.raises(openai.NotFoundError):  # of another key
        other.openai().files.content(file.id)
    keys("rm", "alice")
    time.sleep(REFRESH_S)
    for each in fronts:
        with pytest.raises(openai.AuthenticationError):
            each.openai(key).models.list()


def test_a_batch_of_one_is_cancelled_at_the_other(fronts: tuple[Front, Front]) -> None:
    one, other = (each.openai() for each in fronts)
    file = one.files.create(file=lines_of(2000), purpose="batch")
    batch = other.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert batch.id in [each.id for each in one.batches.list()]
    until(lambda: completed(one, batch.id) > 2)
    for each in (one, other):
        each.batches.cancel(batch.id)
    until(lambda: one.batches.retrieve(batch.id).status == "cancelled")
    assert other.batches.retrieve(batch.id).output_file_id is not None


def test_a_batch_goes_on_where_its_server_was_killed(
    fronts: tuple[Front, Front], ledger: str, tmp_path: Path
) -> None:
    with ExitStack() as started:
        url = new_database(ledger)
        one, other = (started.enter_context(front(tmp_path / name, url)) for name in "ab")
        a, b = one.openai(), other.openai()
        file = a.files.create(file=lines_of(40), purpose="batch")
        batch = a.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        until(lambda: completed(b, batch.id) > 2)
        [(holder,)] = rows(url, "SELECT holder FROM claims")
        unfinished = in_background(a, 8)
        one.kill()
        before = dict(rows(url, "SELECT custom_id, reply FROM batch_lines WHERE state = 1"))
        until(lambda: b.batches.retrieve(batch.id).status == "completed", 90)
        ended = b.batches.retrieve(batch.id)
        assert ended.output_file_id is not None
        found = [json.loads(line) for line in b.files.content(ended.output_file_id).text.splitlines()]
        assert sorted(int(line["custom_id"]) for line in found) == list(range(40))
        kept = {line["custom_id"]: line["id"] for line in found}
        assert all(json.loads(reply)["id"] == kept[name] for name, reply in before.items())
        until(lambda: rows(url, "SELECT holder FROM claims") != [(holder,)])  # also where all lines had run
        assert "failed" in [b.responses.retrieve(name).status for name in unfinished]
