"""Two servers with a common PostgreSQL, of which one works and the other is asked."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from in_process import Running

from postgres_server import running_postgres

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
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
