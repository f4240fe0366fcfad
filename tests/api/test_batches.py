"""Batches through the official client: every line once, wrong ones alone, whatever happens in between."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from fake import FakeEngine, FakeModel, overloaded
from in_process import Running

import headrace.api.http.api_keys
import headrace.inference.batches.batch_lines
import headrace.inference.batches.batch_runner
from headrace.inference.batches.batch_files import publish
from headrace.inference.batches.batch_lines import read_lines, text_lines
from headrace.storage.batches import Batches, Line, LineState
from headrace.storage.database import Database
from headrace.storage.files import Files
from headrace.storage.keys import KeyLimits, Keys

CHAT = "/v1/chat/completions"
Serve = Callable[..., Running]


def line(custom_id: object, url: str = CHAT, **body: Any) -> dict[str, Any]:
    if url == CHAT and "messages" not in body:
        body["messages"] = [{"role": "user", "content": f"hello {custom_id}"}]
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def begin(server: Running, lines: list[Any], endpoint: str = CHAT, client: Any = None, **more: Any) -> Any:
    client = client or server.openai()
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    more = {"completion_window": "24h"} | more
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, **more)


def finish(server: Running, batch: Any, client: Any = None) -> Any:
    """Wait until the batch has ended."""
    client, until_s = client or server.openai(), time.monotonic() + 20
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < until_s, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def wait_until(met: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not met():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def lines_of(server: Running, file_id: str | None, client: Any = None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (client or server.openai()).files.content(file_id).text
    assert text.endswith("\n")
    return [json.loads(one) for one in text.splitlines()]


@pytest.fixture
def start(serve: Serve, tmp_path) -> Callable[..., Running]:
    """Servers of one store."""
    return lambda model=None, **flags: serve(model or FakeModel(), store=tmp_path / "store.sqlite3", **flags)


def test_lines_become_lines_in_their_order(start: Serve) -> None:
    server = start()
    batch = begin(
        server,
        [line(str(n), max_tokens=3 + n % 4) for n in range(30)],
        metadata={"team": "a"},
    )
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"team": "a"})
    assert batch.expires_at == batch.created_at + 86_400
    batch = finish(server, batch)
    assert batch.status == "completed" and batch.completed_at >= batch.created_at
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (30, 30, 0)
    assert batch.error_file_id is None
    outputs = lines_of(server, batch.output_file_id)
    assert [one["custom_id"] for one in outputs] == [str(n) for n in range(30)]
    assert len({one["id"] for one in outputs}) == 30
    direct = server.openai().chat.completions.create(
        model="fake/model", messages=line("7")["body"]["messages"], max_tokens=6
    )
    assert outputs[7]["error"] is None and outputs[7]["response"]["status_code"] == 200
    assert (
        outputs[7]["response"]["body"]["choices"][0]["message"]["content"]
        == direct.choices[0].message.content
    )
    usages = [one["response"]["body"]["usage"] for one in outputs]
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
    assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)
    file = server.openai().files.retrieve(batch.output_file_id)
    assert file.purpose == "batch_output" and file.filename == f"{batch.id}_output.jsonl"
    rows = server.server._service.database.query("SELECT COUNT(*) FROM batch_lines")
    assert rows == [(0,)]


def test_a_wrong_line_fails_alone(start: Serve) -> None:
    server = start()
    wrong: list[Any] = [
        "{not json",
        json.dumps(["a"]),
        line(""),
        line(7),
        line("good-1"),  # a second time
        line("url", url="/v1/files"),
        {**line("method"), "method": "GET"},
        {**line("body"), "body": None},
        line("stream", stream=True),
        line("priority", priority=-5),
        {**line("more"), "color": "red"},
    ]
    refused = [
        line("parameter", temperature=-1),
        line("unknown", color="red"),
        line("model", model="other"),
        line("long", max_tokens=10_000),
    ]
    batch = finish(server, begin(server, [line("good-1"), *wrong, "", *refused, line("good-2")]))
    assert batch.status == "completed"
    outputs, errors = lines_of(server, batch.output_file_id), lines_of(server, batch.error_file_id)
    assert [one["custom_id"] for one in outputs] == ["good-1", "good-2"]
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (17, 2, 15)
    codes = [one["error"]["code"] for one in errors if one["error"]]
    assert codes == [
        "invalid_json_line",
        *["invalid_custom_id"] * 3,
        "duplicate_custom_id",
        "invalid_url",
        "invalid_method",
        *["invalid_request"] * 4,
    ]
    assert errors[0]["error"]["message"].startswith("line 2: it is not JSON")
    answered = {one["custom_id"]: one["response"] for one in errors if one["response"]}
    assert {custom_id: one["status_code"] for custom_id, one in answered.items()} == {
        "parameter": 400,
        "unknown": 400,
        "model": 404,
        "long": 400,
    }
    assert answered["unknown"]["body"]["error"]["param"] == "color"


def test_completions_too(start: Serve) -> None:
    server = start()
    body = line("a", "/v1/completions", prompt=["x", "y"], max_tokens=2)
    batch = finish(server, begin(server, [body], "/v1/completions"))
    [output] = lines_of(server, batch.output_file_id)
    assert len(output["response"]["body"]["choices"]) == 2


def test_bad_batches_are_refused(start: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    client = server.openai()
    for more, param in (
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "tomorrow"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": "b" * 600}}, "metadata"),
        ({"extra_body": {"color": "red"}}, "color"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            begin(server, [line("a")], **more)
        assert caught.value.param == param
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        client.batches.create(input_file_id="file-x", endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="no lines"):
        begin(server, ["", " "])
    data = client.files.create(file=b"{}", purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="purpose is 'user_data'"):
        client.batches.create(input_file_id=data.id, endpoint=CHAT, completion_window="24h")
    monkeypatch.setattr(headrace.inference.batches.batch_lines, "MAX_LINES", 3)
    with pytest.raises(openai.BadRequestError, match="more than 3 lines"):
        begin(server, [line(str(n)) for n in range(4)])
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call("batch_x")
    assert list(client.batches.list()) == []


def test_pages(start: Serve) -> None:
    server = start()
    ids = [begin(server, [line("a")]).id for _ in range(5)]
    batches = server.openai().batches
    assert [batch.id for batch in batches.list(limit=2)] == ids[::-1]
    assert [batch.id for batch in batches.list(after=ids[1]).data] == [ids[0]]
    assert server.http().get("/v1/batches?limit=101").status_code == 400


def test_only_idle_capacity_is_used(start: Serve) -> None:
    model = FakeModel(engine=FakeEngine(pause_s=0.001))
    server = start(model, max_num_seqs=8)
    model.engine.go.clear()
    batch = begin(server, [line(str(n)) for n in range(20)])
    engine = model.engine
    wait_until(lambda: len(engine.submitted) == 4)
    assert {request.priority for request in engine.submitted} == {100}
    stream = server.openai().chat.completions.create(
        model="fake/model", messages=[{"role": "user", "content": "live"}], stream=True
    )
    wait_until(lambda: len(engine.submitted) == 5)
    assert engine.submitted[-1].priority == 0
    engine.go.set()
    assert list(stream)
    assert finish(server, batch).request_counts.completed == 20
    assert server.server._service.gate.open_calls == 0


def test_lines_wait_while_requests_take_the_room(start: Serve) -> None:
    server = start(max_num_seqs=4)
    service = server.server._service
    service.gate.open_calls += 2
    batch = begin(server, [line("a")])
    time.sleep(0.4)  # there is nothing to wait for: it must not have begun
    assert server.model.engine.submitted == []
    service.gate.open_calls -= 2
    assert finish(server, batch).status == "completed"


def test_an_overloaded_server_is_tried_again(start: Serve) -> None:
    server = start()
    server.model.engine.refusal = overloaded()
    batch = begin(server, [line(str(n)) for n in range(3)])
    service = server.server._service
    wait_until(lambda: service.metrics.replies[503] > 0)
    server.model.engine.refusal = None
    batch = finish(server, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)


def test_a_limit_of_tokens_leaves_half_to_requests(start: Serve) -> None:
    server = start(key_tpm=1000)
    batch = begin(server, [line(str(n), max_tokens=400, n=1) for n in range(2)])
    service = server.server._service
    wait_until(lambda: service.metrics.replies[429] > 0)
    # The second line may have been refused before the first one ended.
    wait_until(lambda: server.openai().batches.retrieve(batch.id).request_counts.completed == 1)
    assert server.openai().completions.create(model="fake/model", prompt="x", max_tokens=100).choices
    cancelled = server.openai().batches.cancel(batch.id)
    assert finish(server, cancelled).status == "cancelled"


def test_cancel_keeps_what_has_run(start: Serve) -> None:
    server = start(max_num_seqs=4)
    engine = server.model.engine
    done = finish(server, begin(server, [line("a")]))
    again = server.openai().batches
    with pytest.raises(openai.BadRequestError, match="has ended"):
        again.cancel(done.id)
    engine.go.clear()
    batch = begin(server, [line("x", max_tokens=0), *(line(str(n)) for n in range(5))])
    wait_until(lambda: again.retrieve(batch.id).request_counts.failed == 1)
    wait_until(lambda: len(engine.submitted) >= 3)
    assert again.cancel(batch.id).status == "cancelling"
    wait_until(lambda: len(engine.cancelled) == 2)  # both that are under way
    engine.go.set()
    batch = finish(server, batch)
    assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
    assert again.cancel(batch.id).status == "cancelled"
    errors = lines_of(server, batch.error_file_id)
    assert [one["custom_id"] for one in errors] == ["x", *map(str, range(5))]
    assert {one["error"]["code"] for one in errors[1:]} == {"batch_cancelled"}
    wait_until(lambda: not server.server._service.local.runs)


def test_a_batch_whose_time_is_over_has_what_was_done(start: Serve) -> None:
    server = start(max_num_seqs=2)
    engine = server.model.engine
    engine.go.clear()
    batch = begin(
        server,
        [line("bad", temperature=9999), line("slow"), line("later")],
        completion_window="1s",
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    batch = finish(server, batch)
    engine.go.set()
    assert batch.status == "expired" and batch.expired_at and batch.completed_at is None
    errors = lines_of(server, batch.error_file_id)
    assert [one["error"] and one["error"]["code"] for one in errors] == [None, *["batch_expired"] * 2]
    file = server.openai().files.retrieve(batch.error_file_id)
    assert file.expires_at == file.created_at + 7200


def test_the_next_server_goes_on_where_one_stopped(start: Serve) -> None:
    model = FakeModel()
    first = start(model, max_num_seqs=4, shutdown_timeout=1)
    batch = begin(first, [line(str(n), max_tokens=4) for n in range(10)])
    wait_until(lambda: first.openai().batches.retrieve(batch.id).request_counts.completed >= 2)
    model.engine.go.clear()
    first.server.should_exit = True
    model.engine.go.set()
    first.thread.join(20)
    ran = len(model.engine.submitted)
    second = start(FakeModel(engine=FakeEngine("another answer")), max_num_seqs=4)
    batch = finish(second, second.openai().batches.retrieve(batch.id))
    assert (batch.status, batch.request_counts.completed) == ("completed", 10)
    outputs = lines_of(second, batch.output_file_id)
    assert [one["custom_id"] for one in outputs] == [str(n) for n in range(10)]
    texts = [one["response"]["body"]["choices"][0]["message"]["content"] for one in outputs]
    kept = texts.count("a bé")
    assert kept >= 2 and kept + texts.count("anot") == 10
    assert len(second.model.engine.submitted) == 10 - kept and ran <= 10


def test_a_batch_that_was_being_written_is_written_anew(start: Serve) -> None:
    server = start()
    batch = finish(server, begin(server, [line("a")]))
    database = server.server._service.database
    batches, kept = Batches(database), Files(database)
    [stored] = batches.page("", after=None, limit=1)
    lines = [Line(1, "b", b"{}"), Line(2, "c", b"{}")]
    again = batches.add(
        "",
        lines,
        endpoint=CHAT,
        input_file_id=stored.input_file_id,
        completion_window="24h",
        window_s=0,
        metadata=None,
        files_expire_after_s=None,
    )
    batches.record(again.id, 1, LineState.COMPLETED, b'{"response": {"body": {}}, "custom_id": "b"}\n')
    batches.close(again.id, "expired")
    torn = kept.begin("", "torn", "batch_output", again.id, expires_after_s=None)
    kept.append(torn, 0, b"half a li")
    found = finish(server, server.openai().batches.retrieve(again.id))
    assert found.status == "expired"
    assert [one["custom_id"] for one in lines_of(server, found.output_file_id)] == ["b"]
    assert [one["custom_id"] for one in lines_of(server, found.error_file_id)] == ["c"]
    assert database.query("SELECT COUNT(*) FROM files WHERE unfinished_of IS NOT NULL") == [(0,)]
    assert batch.status == "completed"


def test_a_batch_ends_once(start: Serve) -> None:
    """Who began to look before it ended, and comes late, changes nothing."""
    server = start()
    batch = finish(server, begin(server, [line("a")]))
    database = server.server._service.database
    [stored] = Batches(database).page("", after=None, limit=1)
    Batches(database).close(batch.id, "expired")
    publish(database, stored, "expired")
    assert server.openai().batches.retrieve(batch.id) == batch


def test_of_two_servers_one_runs_the_batches(start: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.inference.batches.batch_runner, "LOOK_IDLE_S", 0.1)
    first, second = start(), start()
    one = finish(first, begin(first, [line("a")]))
    other = begin(second, [line("b")])
    assert finish(second, other).status == one.status == "completed"
    assert sorted(len(server.model.engine.submitted) for server in (first, second)) == [0, 2]


def test_batches_of_stored_keys_run_where_nobody_asks_for_anything(
    start: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that has the work may get no requests, with which it would have read the keys."""
    monkeypatch.setattr(headrace.inference.batches.batch_runner, "LOOK_IDLE_S", 0.1)
    database = Database(tmp_path / "store.sqlite3")
    key = Keys(database).add("a", KeyLimits())
    idle = start()
    wait_until((tmp_path / "store.sqlite3.batches").exists)
    asked = start()
    client = asked.openai(api_key=key)
    batch = finish(asked, begin(asked, [line("a")], client=client), client)
    assert batch.status == "completed" and len(idle.model.engine.submitted) == 1
    database.close()


def test_a_batch_ends_with_its_key(start: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.api.http.api_keys, "REFRESH_S", 0.0)
    database = Database(tmp_path / "store.sqlite3")
    keys = Keys(database)
    key, server = keys.add("a", KeyLimits()), start(max_num_seqs=4)
    engine = server.model.engine
    engine.go.clear()
    begin(server, [line(str(n)) for n in range(20)], client=server.openai(api_key=key))
    wait_until(lambda: len(engine.submitted) == 2)
    keys.revoke("a")
    wait_until(lambda: len(engine.cancelled) == 2)
    engine.go.set()
    time.sleep(0.4)  # there is nothing to wait for: no other line may begin
    assert len(engine.submitted) == 2
    database.execute("UPDATE batches SET expires_s = 1")
    wait_until(lambda: database.query("SELECT status FROM batches") == [("expired",)])
    assert len(engine.submitted) == 2 and database.query("SELECT count(*) FROM batch_lines") == [(0,)]
    database.close()


def test_every_key_has_its_own(start: Serve) -> None:
    server = start(api_key="one,two", log_requests=True)
    one, two = server.openai(api_key="one"), server.openai(api_key="two")
    batch = finish(server, begin(server, [line("a")], client=one), one)
    assert list(two.batches.list()) == []
    for call in (two.batches.retrieve, two.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call(batch.id)
    file = one.files.create(file=json.dumps(line("a")).encode(), purpose="batch")
    with pytest.raises(openai.NotFoundError):
        two.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    database = server.server._service.database
    wait_until(lambda: bool(database.query("SELECT 1 FROM request_log WHERE path = ?", (CHAT,))))
    assert database.query("SELECT key_name FROM request_log WHERE path = ?", (CHAT,)) == [("key 1",)]


def test_hostile_lines_fail_alone() -> None:
    random_ = random.Random(4)
    seed = json.dumps(line("a", stop=["b"], logit_bias={"1": 2}), ensure_ascii=False).encode()
    pieces = [b'"', b"{", b"}", b"[" * 2000, b"null", b"1e999", b"\\ud800", b"\xff", b"\x00", b"NaN", b","]
    for _ in range(3000):
        text = bytearray(seed)
        for _ in range(random_.randrange(1, 4)):
            at = random_.randrange(len(text))
            text[at : at + random_.randrange(4)] = random_.choice(pieces)
        good, bad = read_lines([json.dumps(line("good")).encode() + b"\n", bytes(text)], CHAT)
        assert good.state is LineState.PENDING
        assert (bad.state is LineState.PENDING) == (bad.reply is None)
        assert bad.reply is None or json.loads(bad.reply)["error"]["code"]


def test_lines_are_found_wherever_the_parts_end() -> None:
    text = b'{"a": 1}\n\n{"b": 2}\r\n{"c": 3}'
    for size in range(1, len(text) + 1):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert list(text_lines(parts)) == [b'{"a": 1}', b"", b'{"b": 2}\r', b'{"c": 3}']
    good = json.dumps(line("é\n" * 9)).encode() + b"\r\n"
    [found] = read_lines([good], CHAT)
    assert (found.place, found.custom_id, found.state) == (1, "é\n" * 9, LineState.PENDING)


def test_responses_run_in_batches(start: Serve) -> None:
    server = start()
    lines = [line(str(n), "/v1/responses", input=f"hello {n}", max_output_tokens=4) for n in range(3)]
    lines.append(line("kept", "/v1/responses", input="hello", background=True))
    batch = finish(server, begin(server, lines, "/v1/responses"))
    counts = batch.request_counts
    assert (counts.completed, counts.failed) == (3, 1)
    bodies = [one["response"]["body"] for one in lines_of(server, batch.output_file_id)]
    assert all(body["object"] == "response" and body["usage"]["output_tokens"] == 4 for body in bodies)
    assert batch.usage.output_tokens == 12
