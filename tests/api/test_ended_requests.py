"""/v1/requests: each key sees its own requests, within bounds, and where their time went."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake import FakeModel
from in_process import Running, running_server

from headrace.api import service
from headrace.api.http import request_log
from headrace.api.http.request_log import RequestLog
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.database import Database
from headrace.storage.request_log import LogBounds, LoggedRequest, LogTrimmer, read_log, write_log

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "a secret word"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def mini() -> Iterator[Running]:
    model = load_model("mini", EngineOptions(max_num_seqs=4))
    with running_server(model) as server:
        yield server
    model.close()


def test_the_parts_of_a_request_are_there_afterwards(mini: Running) -> None:
    http = mini.http()
    reply = http.post(CHAT, json=BODY | {"stream": True})
    request_id = reply.headers["x-request-id"]
    found = http.get(f"/v1/requests/{request_id}").json()
    assert (found["status"], found["endpoint"], found["model"]) == ("completed", CHAT, "mini")
    assert found["output_tokens"] == 4 and 0 < found["ttft_s"] <= found["duration_s"]
    assert found["body"] is None and "secret" not in json.dumps(found)
    tree = http.get(f"/v1/requests/{request_id}/explain").json()
    [engine] = [one for one in tree["children"] if one["name"] == "engine"]
    assert {"queue", "prefill 1", "decode"} <= {one["name"] for one in engine["children"]}
    assert abs(tree["measured_s"] - found["duration_s"]) < 1e-4
    total = sum(one["measured_s"] for one in tree["children"])
    assert abs(total - tree["measured_s"]) <= 0.02 * tree["measured_s"] + 3e-4


def test_pages_and_filters(mini: Running) -> None:
    http = mini.http()
    for number in range(5):
        http.post(CHAT, json=BODY, headers={"x-request-id": f"page-{number}"})
    assert http.post(CHAT, json={"n": 0}, headers={"x-request-id": "bad"}).status_code == 400
    page = http.get("/v1/requests?limit=3").json()
    assert [one["id"] for one in page["data"]] == ["bad", "page-4", "page-3"] and page["has_more"]
    after = http.get("/v1/requests", params={"limit": 3, "after": page["last_id"]}).json()
    assert [one["id"] for one in after["data"]] == ["page-2", "page-1", "page-0"]
    [failed, *_] = http.get("/v1/requests?status=failed").json()["data"]
    assert (failed["id"], failed["http_status"], failed["error"]) == (
        "bad",
        400,
        "missing_required_parameter",
    )
    assert http.get("/v1/requests?status=wrong").status_code == 400
    assert http.get("/v1/requests?limit=0").status_code == 400
    for params in ({"model": "other"}, {"endpoint": "/v1/sql"}, {"key": "nobody"}, {"since": 9e9}):
        assert http.get("/v1/requests", params=params).json()["data"] == []


def test_an_id_that_is_sent_again_is_the_latest_and_pages_do_not_repeat(mini: Running) -> None:
    http = mini.http()
    http.post(CHAT, json=BODY, headers={"x-request-id": "earlier"})
    for tokens in (1, 2, 3):
        http.post(CHAT, json=BODY | {"max_tokens": tokens}, headers={"x-request-id": "again"})
    assert http.get("/v1/requests/again").json()["output_tokens"] == 3
    first = http.get("/v1/requests?limit=1").json()
    assert first["last_id"] == "again"
    second = http.get("/v1/requests", params={"limit": 1, "after": "again"}).json()
    assert second["data"][0]["id"] == "earlier"


def test_requests_that_run_are_listed(mini: Running) -> None:
    http, body = mini.http(), BODY | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    names, lines = ("runs-1", "runs-2"), list[Iterator[str]]()
    with ExitStack() as streams:
        for name in names:
            opened = http.stream("POST", CHAT, json=body, headers={"x-request-id": name})
            lines.append(streams.enter_context(opened).iter_lines())  # which closes it when it goes
            next(lines[-1])
        page = http.get("/v1/requests?limit=1").json()
        assert page["has_more"] and page["last_id"] == "runs-2"
        [second] = http.get("/v1/requests?limit=1&after=runs-2").json()["data"]
        assert (second["id"], second["status"], second["http_status"]) == ("runs-1", "running", 200)
        assert second["ttft_s"] <= second["duration_s"] and second["model"] == "mini"
        running = http.get("/v1/requests?status=running").json()["data"]
        assert [one["id"] for one in running] == [*names[::-1]]
        assert http.get("/v1/requests?status=running&model=other").json()["data"] == []
        assert http.get("/v1/requests/runs-1").json()["status"] == "running"
    while http.get("/v1/requests?status=running").json()["data"]:
        pass  # a client that leaves is noticed within a step
    assert http.get("/v1/requests/runs-1").json()["status"] == "cancelled"


def test_nothing_of_that_id(mini: Running) -> None:
    for path in ("/v1/requests/nothing", "/v1/requests/nothing/explain"):
        reply = mini.http().get(path)
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "request_not_found"
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("kept", [False, True])
def test_a_key_sees_its_own_and_an_admin_all(tmp_path: Path, kept: bool) -> None:
    path = tmp_path / "store.sqlite3"
    flags = {"api_key": "one,two", "admin_api_key": "boss", "log_requests": kept, "store": path}
    with running_server(FakeModel(), **flags) as server:

        def client(key: str) -> Any:
            return server.http(headers={"authorization": f"Bearer {key}"})

        one, two, boss = client("one"), client("two"), client("boss")
        one.post(CHAT, json=BODY, headers={"x-request-id": "of-one"})
        two.post(CHAT, json=BODY, headers={"x-request-id": "of-two"})
        server.http().post(CHAT, json=BODY, headers={"x-request-id": "of-nobody"})
        assert [it["id"] for it in one.get("/v1/requests").json()["data"]] == ["of-one"]
        assert one.get("/v1/requests/of-one").status_code == 200
        for path_ in ("of-two", "of-two/explain", "of-nobody"):
            assert one.get(f"/v1/requests/{path_}").status_code == 404
        # an id of another key as a cursor says nothing, either
        for unknown in ("of-two", "never-was"):
            reply = one.get("/v1/requests", params={"after": unknown})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after")
        seen = boss.get("/v1/requests").json()["data"]
        assert [(it["id"], it["key"]) for it in seen] == [
            ("of-nobody", None),
            ("of-two", "key 2"),
            ("of-one", "key 1"),
        ]
        assert server.http().get("/v1/requests").status_code == 401
    assert path.exists() is kept


def test_content_only_where_the_operator_wants_it() -> None:
    with running_server(FakeModel(), log_content=True) as server:
        http = server.http()
        request_id = http.post(CHAT, json=BODY).headers["x-request-id"]
        assert "a secret word" in http.get(f"/v1/requests/{request_id}").json()["body"]
        assert "a secret word" not in http.get("/v1/requests").text


def test_requests_are_there_after_a_restart(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"log_requests": True, "store": tmp_path / "s.sqlite3", "api_key": "k"}
    key = {"authorization": "Bearer k"}
    with running_server(FakeModel(), **flags) as server:
        server.http(headers=key).post(CHAT, json=BODY, headers={"x-request-id": "before"})
    with running_server(FakeModel(), **flags) as server:
        assert server.http(headers=key).get("/v1/requests/before/explain").json()["name"] == "request"


def line(owner: str, number: int, size: int = 100, arrived_s: float = 1e9) -> LoggedRequest:
    facts: dict[str, Any] = {"key_name": None, "method": "POST", "path": "/", "status": 200, "model": None}
    counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "first_token_s"))
    return LoggedRequest(
        **facts,
        **counts,
        id=f"{owner}{number}",
        arrived_s=arrived_s,
        total_s=1.0,
        error=None,
        body=None,
        owner=owner,
        size_bytes=size,
    )


def test_bounds_of_a_key_of_all_bytes_and_of_age() -> None:
    database = Database(None)
    trimmer = LogTrimmer(database, LogBounds(max_requests=50, max_bytes=20_000, max_age_s=100))

    def add(lines: list[LoggedRequest]) -> None:
        write_log(database, lines)
        trimmer.added(lines, 1e9 + 50)

    add([line("quiet", 0)])
    for number in range(300):
        add([line("loud", number)])
    kept = read_log(database)
    assert sum(one.owner == "loud" for one in kept) <= 55 and kept[0].owner == "quiet"
    assert kept[-1].id == "loud299"
    for number in range(300, 330):  # of all bytes the key that has most loses some
        add([line("loud", number, size=1000)])
    kept = read_log(database)
    assert sum(one.size_bytes for one in kept) <= 20_000 and kept[0].owner == "quiet"
    trimmer = LogTrimmer(database, LogBounds(max_requests=50, max_bytes=20_000, max_age_s=40))
    add([line("new", number, arrived_s=1e9 + 49) for number in range(10)])
    assert {one.owner for one in read_log(database)} == {"new"}


def test_memory_is_bounded_without_the_setting() -> None:
    with running_server(FakeModel(), log_max_requests=20) as server:
        http = server.http()
        for _ in range(60):
            assert http.post("/v1/tokenize", json={"prompt": "a"}).status_code in (200, 404)
        assert len(http.get("/v1/requests?limit=1000").json()["data"]) <= 22


def test_no_line_is_made_of_what_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the calls of one key, more than are kept: they are dropped as they are, and the latest are there."""
    made: list[str] = []
    line = RequestLog._line  # pyright: ignore[reportPrivateUsage]

    def noted(log: RequestLog, call: Any) -> LoggedRequest:
        made.append(call.request_id)
        return line(log, call)

    monkeypatch.setattr(request_log, "UNREAD", 40)
    monkeypatch.setattr(service, "UNREAD", 40)
    monkeypatch.setattr(RequestLog, "_line", noted)
    with running_server(FakeModel(), log_max_requests=15) as server:
        http = server.http()
        for number in range(60):
            assert http.post(CHAT, json={"n": 0}, headers={"x-request-id": f"r{number}"}).status_code == 400
        assert made == []
        page = http.get("/v1/requests?limit=50").json()
        assert [one["id"] for one in page["data"]] == [f"r{number}" for number in range(59, 44, -1)]
        assert len(made) < 40, "of those that were dropped there were no lines"
        asked = BODY | {"explain": True}
        assert http.post(CHAT, json=asked, headers={"x-request-id": "explained"}).status_code == 200
        end_s = time.monotonic() + 20
        while "explained" not in made:  # without being asked for
            assert time.monotonic() < end_s
            time.sleep(0.01)


def test_calls_that_wait_hold_little() -> None:
    """Clients say how long paths and lists are: of inputs, of token ids, of servers; and kept bodies."""
    many = {"prompt": ["a"] * 40, "max_tokens": 1, "allowed_token_ids": list(range(100))}
    with running_server(FakeModel()) as server:
        reply = server.http().post("/v1/completions", json=many)
        usage = reply.json()["usage"]
        [call] = server.server._service.requests.waiting  # pyright: ignore[reportPrivateUsage]
        assert len(call.usages) == 1 and call.params is None and not call.warnings
        strangers = {
            "x-headrace-hops": "ab," * 999 + "ab",
            "traceparent": "0" * 4000,
            "tracestate": "a" * 4000,
        }
        assert server.http().post(f"/v1/{'a' * 4000}", headers=strangers).status_code == 404
        call = server.server._service.requests.waiting[-1]  # pyright: ignore[reportPrivateUsage]
        said = (call.path, call.surface, call.traceparent, call.tracestate)
        assert not call.hops and max(map(len, said)) <= 1024
        line = server.http().get("/v1/requests").json()["data"][1]
        names = ("input_tokens", "output_tokens")
        assert [line[name] for name in names] == [usage["prompt_tokens"], usage["completion_tokens"]]
    with running_server(FakeModel(), log_content=True) as server:
        waiting = server.server._service.requests.waiting  # pyright: ignore[reportPrivateUsage]
        assert server.http().post(CHAT, json=BODY).status_code == 200
        end_s = time.monotonic() + 20
        while waiting:  # without being asked for
            assert time.monotonic() < end_s
            time.sleep(0.01)
