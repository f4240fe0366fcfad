"""What a key may use, what the queue takes, and how refusals look."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import openai
import pytest
from fake import FakeModel
from in_process import Running
from prometheus_client.parser import text_string_to_metric_families

import headrace.api.http.api_keys
import headrace.api.http.body_memory
from headrace.api.http.api_keys import KeyRing
from headrace.api.http.body_memory import BodyMemory
from headrace.api.http.call_context import HttpCall
from headrace.config.settings import Settings
from headrace.errors import Overloaded
from headrace.inference.accounts import Account, RateLimited, ReadLimits
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rejections(server: Running) -> dict[str, float]:
    text = server.http().get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {s.labels["reason"]: s.value for s in families["headrace_admission_rejected"].samples}


def test_a_server_that_had_keys_stays_closed_where_they_are_gone(tmp_path: Path) -> None:
    """Such as after its database was replaced by an empty one."""
    database, clock = Database(tmp_path / "store.sqlite3"), Clock()
    Keys(database).add("a", KeyLimits())
    ring = KeyRing(Settings(), database, clock)

    async def look() -> list[bool]:
        found: list[bool] = []
        for statement in ("SELECT 1", "DELETE FROM keys", "SELECT 1"):
            database.query(statement) if statement[0] == "S" else database.execute(statement)
            clock.now_s += 10
            await ring.refresh()
            found.append(ring.required)
        return found

    assert asyncio.run(look()) == [True, True, True]
    ring.close()
    database.close()


def test_requests_come_back_evenly() -> None:
    clock = Clock()
    account = Account("a", KeyLimits(requests_per_minute=60), clock=clock)
    for _ in range(60):
        account.enter()
    with pytest.raises(RateLimited, match="60 requests per minute") as refused:
        account.enter()
    assert refused.value.retry_after_s == pytest.approx(1.0)
    assert dict(account.headers())[b"x-ratelimit-reset-requests"] == b"60.000s"
    clock.now_s += 1.0
    account.enter()
    with pytest.raises(RateLimited):
        account.enter()
    clock.now_s += 3600
    assert dict(account.headers())[b"x-ratelimit-remaining-requests"] == b"60"


def test_tokens_are_set_aside_and_settled() -> None:
    clock = Clock()
    account = Account("a", KeyLimits(tokens_per_minute=600), clock=clock)
    account.reserve(500)
    with pytest.raises(RateLimited, match="200 are needed") as refused:
        account.reserve(200)
    assert refused.value.retry_after_s == pytest.approx(10.0)
    account.settle(450)
    account.reserve(200)
    assert dict(account.headers())[b"x-ratelimit-remaining-tokens"] == b"350"
    clock.now_s += 60
    account.reserve(10_000)  # more than a minute's tokens runs when all of these are there, on credit
    with pytest.raises(RateLimited):
        account.enter()


def test_headers_and_refusal_of_a_key(serve) -> None:
    server = serve(api_key="one,two", key_rpm=2)
    one = server.http(headers={"authorization": "Bearer one"})
    first = one.post(CHAT, json=BODY)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert one.post(CHAT, json=BODY).status_code == 200
    refused = one.post(CHAT, json=BODY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    assert int(refused.headers["retry-after-ms"]) > 25_000
    with pytest.raises(openai.RateLimitError):
        server.openai(api_key="one").chat.completions.create(model="fake/model", **BODY)
    assert server.http(headers={"authorization": "Bearer two"}).post(CHAT, json=BODY).status_code == 200


def test_tokens_per_minute_over_http(serve) -> None:
    http = serve(key_tpm=1000).http()
    reply = http.post(CHAT, json=BODY | {"max_tokens": 900})
    usage = reply.json()["usage"]
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) >= 1000 - usage["total_tokens"]
    refused = http.post(CHAT, json=BODY | {"max_tokens": 1200})
    assert refused.status_code == 429
    assert http.post(CHAT, json=BODY | {"max_tokens": 100_000}).status_code in (400, 429)


def test_a_refusal_at_the_engines_door_costs_no_tokens(serve) -> None:
    server = serve(key_tpm=100_000)
    refused = server.http().post(CHAT, json=BODY | {"max_tokens": 50_000})
    assert refused.status_code == 400
    assert int(refused.headers["x-ratelimit-remaining-tokens"]) == 100_000


def test_requests_at_a_time(serve) -> None:
    model = FakeModel()
    server = serve(model, key_max_concurrency=1)
    model.engine.go.clear()
    with server.http().stream("POST", CHAT, json=BODY | {"stream": True}) as stream:
        assert server.http().post(CHAT, json=BODY).status_code == 429
        assert server.http().get("/v1/models").status_code == 200
        model.engine.go.set()
        assert b"[DONE]" in stream.read()
    assert server.http().post(CHAT, json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("flags", "reason"),
    [({"max_concurrent_requests": 1}, "queue"), ({"max_queued_tokens": 1}, "queued_tokens")],
)
def test_a_full_queue_refuses_before_the_body_is_read(serve, flags, reason) -> None:
    model = FakeModel()
    server = serve(model, **flags)
    model.engine.go.clear()
    with server.http().stream("POST", CHAT, json=BODY | {"stream": True}) as stream:
        refused = server.http().post(CHAT, content=b"this is no JSON")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        assert refused.headers["retry-after"] == "1"
        model.engine.go.set()
        stream.read()
    assert server.http().post(CHAT, json=BODY).status_code == 200
    assert rejections(server) == {reason: 1}


def test_large_bodies_together_are_bounded(serve, monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.body_memory, "BODIES_LIMIT_BYTES", 40_000)
    monkeypatch.setattr(headrace.api.http.body_memory, "SMALL_BYTES", 1000)
    server = serve()
    http = server.http()
    large = BODY | {"user": "x" * 22_000}
    assert http.post(CHAT, json=large).status_code == 503, "more than a client's share"
    assert http.post(CHAT, content=(b"x" * 4000 for _ in range(6))).status_code == 503
    for _ in range(5):
        assert http.post(CHAT, json=BODY | {"user": "x" * 18_000}).status_code == 200
    assert rejections(server) == {"body_bytes": 2}


def test_memory_for_bodies_has_a_share_for_each_client(monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.body_memory, "BODIES_LIMIT_BYTES", 1000)
    monkeypatch.setattr(headrace.api.http.body_memory, "SMALL_BYTES", 100)
    memory = BodyMemory()
    account = Account("", KeyLimits())
    calls = [
        HttpCall(request_id="", method="POST", path="/", account=account, client=name) for name in "aabbc"
    ]
    memory.hold(calls[0], 400)
    memory.hold(calls[0], 500)
    assert calls[0].body_bytes == 400
    with pytest.raises(Overloaded, match="400 bytes from this client"):
        memory.hold(calls[1], 201)
    memory.hold(calls[1], 200)
    memory.hold(calls[2], 600)
    with pytest.raises(Overloaded, match="bodies of 1,000 bytes are"):
        memory.hold(calls[4], 101)
    memory.hold(calls[3], 100)  # small bodies need no memory
    memory.hold(calls[4], 100)
    memory.release(calls[2])
    memory.hold(calls[4], 400)
    for call in calls:
        memory.release(call)
    assert memory._all == 0 and not memory._of_client


def test_reads_are_limited_for_each_client(serve) -> None:
    http = serve(key_read_rpm=3).http()
    for _ in range(3):
        assert http.get("/v1/models").status_code == 200
    refused = http.get("/v1/models")
    assert refused.status_code == 429
    assert "--key-read-rpm" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert http.get("/health").status_code == 200, "who watches the server is never refused"
    assert http.post(CHAT, json=BODY).status_code == 200, "requests have limits of their own"


def test_clients_that_read_are_forgotten_and_have_buckets_of_their_own() -> None:
    now_s = 0.0
    limits = ReadLimits(lambda: now_s)
    limits.take("a", 1)
    with pytest.raises(RateLimited):
        limits.take("a", 1)
    for number in range(limits.MAX_CLIENTS):
        limits.take(f"b{number}", 1)
    assert len(limits._buckets) == limits.MAX_CLIENTS
    now_s = 60.0
    limits.take("b1", 1)


def test_keys_of_the_store_count_at_once_and_revoking_closes(serve, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.api_keys, "REFRESH_S", 0.0)
    path = tmp_path / "store.sqlite3"
    server = serve(store=path)
    assert server.http().get("/v1/models").status_code == 200
    database = Database(path)
    keys = Keys(database)
    alice = keys.add("alice", KeyLimits(requests_per_minute=1))
    assert server.http().get("/v1/models").status_code == 401
    http = server.http(headers={"authorization": f"Bearer {alice}"})
    assert http.get("/v1/models").status_code == 200
    assert http.post(CHAT, json=BODY).status_code == 200
    keys.add("bob", KeyLimits())  # the refresh does not forget what alice has used
    assert http.post(CHAT, json=BODY).status_code == 429
    keys.revoke("alice")
    keys.revoke("bob")
    assert http.get("/v1/models").status_code == 401
    assert server.http().get("/v1/models").status_code == 401, "a store without keys left is not open"
    database.close()


def test_refusals_print_how_long_they_take(serve) -> None:
    server = serve(key_rpm=1)
    http = server.http()
    http.post(CHAT, json=BODY)
    times: list[float] = []
    for _ in range(50):
        start_s = time.perf_counter()
        assert http.post(CHAT, json=BODY | {"user": "x" * 100_000}).status_code == 429
        times.append(time.perf_counter() - start_s)
    print(
        f"refused in {sorted(times)[25] * 1000:.1f} ms (median), {sorted(times)[49] * 1000:.1f} ms (longest)"
    )
