"""Two servers with a common PostgreSQL, of which one works and the other is asked."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from in_process import Running

from postgres_server import running_postgres

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
from headrace.errors import StoreBusy  # noqa: E402
from headrace.storage.postgres import PARTS  # noqa: E402  (needs the extra)

Serve = Callable[..., Running]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as found:
        yield found.url


@pytest.fixture
def pair(postgres: str, serve: Serve, tmp_path: Path) -> Callable[..., tuple[Running, Running]]:
    """Two of them with settings, and a database of their own."""

    def started(**flags: Any) -> tuple[Running, Running]:
        name = f"t{secrets.token_hex(6)}"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = postgres.replace("/postgres?", f"/{name}?")
        one, other = (
            serve(ledger=url, cluster={"fronts": 2}, store=tmp_path / f"{name}.sqlite3", **flags)
            for name in "ab"
        )
        return one, other

    return started


Pair = Callable[..., tuple[Running, Running]]


def slow(server: Running) -> Running:
    server.model.engine.pause_s, server.model.engine.answer = 0.01, "a" * 3000
    return server


def test_what_one_makes_the_other_stops(pair: Pair) -> None:
    one, other = pair()
    client = other.openai()
    made = slow(one).openai().responses.create(model="fake/model", input="a", background=True)
    assert client.responses.retrieve(made.id).status in ("queued", "in_progress")
    with pytest.raises(openai.BadRequestError, match="another server makes"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="not ended"):
        client.responses.create(model="fake/model", input="b", previous_response_id=made.id)
    stopped = client.responses.cancel(made.id)
    assert stopped.status == "cancelled" and len(stopped.output_text) < 3000
    assert one.openai().responses.retrieve(made.id) == stopped == client.responses.cancel(made.id)
    assert one.model.engine.cancelled == [made.id]


def test_what_one_makes_the_other_forgets(pair: Pair) -> None:
    one, other = pair()
    made = slow(one).openai().responses.create(model="fake/model", input="a", background=True)
    other.openai().responses.delete(made.id)
    assert one.model.engine.cancelled_event.wait(10)
    with pytest.raises(openai.NotFoundError):
        one.openai().responses.retrieve(made.id)


def test_what_each_has_of_requests_says_so(pair: Pair) -> None:
    one, _ = pair()
    reply = one.http().get("/v1/requests")
    assert reply.status_code == 200 and "of this server alone" in reply.headers["x-headrace-warnings"]
    refused = one.http().delete("/v1/requests/req_1").json()["error"]
    assert refused["code"] == "one_front_only"
    headers = {"idempotency-key": "abcdefgh"}
    refused = one.http().post("/v1/responses", json={"input": "a"}, headers=headers).json()["error"]
    assert refused["code"] == "one_front_only"
    assert one.http().get("/v1/vector_stores").json()["error"]["code"] == "one_front_only"


def chat(server: Running, key: str, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": "a"}]
    client = server.openai(api_key=key)
    return client.chat.completions.create(model="fake/model", messages=messages, **({"max_tokens": 4} | more))


def test_requests_are_counted_over_both(pair: Pair) -> None:
    servers = pair(api_key="k1,k2", key_rpm=6)
    for number in range(6):
        chat(servers[number % 2], "k1")
    for server in servers:
        with pytest.raises(openai.RateLimitError, match="6 requests per minute"):
            chat(server, "k1")
    chat(servers[1], "k2")


def test_a_key_that_has_no_requests_left_does_not_wait_for_the_store(pair: Pair, postgres: str) -> None:
    one, _ = pair(api_key="k1", key_rpm=2)
    for _ in range(2):
        chat(one, "k1")
    with pytest.raises(openai.RateLimitError):
        chat(one, "k1")
    with psycopg.connect(postgres, autocommit=True, client_encoding="utf8") as connection:
        newest = "SELECT datname FROM pg_database WHERE datname ~ '^t[0-9a-f]{12}$' ORDER BY oid DESC LIMIT 1"
        [(name,)] = connection.execute(newest).fetchall()
    url = postgres.replace("/postgres?", f"/{name}?")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (PARTS["STORE"].lock,))  # transactions wait for it
        with pytest.raises(openai.RateLimitError, match="2 requests per minute"):
            chat(one, "k1")


def test_tokens_are_counted_over_both_and_come_back(pair: Pair) -> None:
    one, other = pair(api_key="k1", key_tpm=1000)
    client = slow(one).openai(api_key="k1")
    with client.responses.create(model="fake/model", input="a", max_output_tokens=900, stream=True) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="tokens per minute"):
            chat(other, "k1", max_tokens=500)
    until(lambda: is_free(other, max_tokens=500))  # what was set aside and not used


def test_requests_at_a_time_are_counted_over_both(pair: Pair) -> None:
    one, other = pair(api_key="k1", key_max_concurrency=1)
    slow(one)
    client = one.openai(api_key="k1")
    with client.responses.create(model="fake/model", input="a", stream=True) as stream:
        next(iter(stream))
        for server in (one, other):
            with pytest.raises(openai.RateLimitError, match="at most 1 may be"):
                chat(server, "k1")
    until(lambda: one.model.engine.cancelled)
    until(lambda: is_free(other))
    one.model.engine.pause_s = 0.0
    chat(one, "k1")


def test_requests_that_end_while_the_store_is_away_count_no_longer(pair: Pair) -> None:
    """They would be counted until a restart: a key with few requests at a time could make none."""
    one, _ = pair(api_key="k1", key_max_concurrency=1)
    slow(one)
    use, failed = one.server._service.keys._shared.use, list[str]()

    def fail() -> None:
        failed.append("")
        raise StoreBusy("it does not answer", reason="store")

    client = one.openai(api_key="k1")
    with client.responses.create(model="fake/model", input="a", stream=True) as stream:
        next(iter(stream))
        use.transaction = fail
    until(lambda: failed)
    del use.transaction
    one.model.engine.pause_s = 0.0
    chat(one, "k1")


def until(found: Callable[[], object]) -> None:
    end_s = time.monotonic() + 20
    while not found():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_free(server: Running, key: str = "k1", **more: Any) -> bool:
    try:
        chat(server, key, **more)
    except openai.RateLimitError:
        return False
    return True
