"""The request log: a line for each request, content only where it is asked for, and never in the way."""

from __future__ import annotations

from pathlib import Path

from fake import FakeEngine, FakeModel
from in_process import running_server

from headrace.errors import EngineStopped, StoreError
from headrace.storage.database import Database
from headrace.storage.request_log import LoggedRequest, read_log

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4}


def logged(path: Path) -> list[LoggedRequest]:
    database = Database(path)
    try:
        return read_log(database)
    finally:
        database.close()


def test_a_line_for_each_request_without_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    with running_server(FakeModel(), log_requests=True, store=path, api_key="k") as server:
        http = server.http(headers={"authorization": "Bearer k", "x-request-id": "mine"})
        assert http.post(CHAT, json=BODY).status_code == 200
        assert http.post(CHAT, json=BODY | {"stream": True}).status_code == 200
        assert http.post(CHAT, json={"n": 0}).status_code == 400
        assert server.http().post(CHAT, json=BODY).status_code == 401
        http.get("/v1/models")
    whole, streamed, bad, stranger = logged(path)
    for line in (whole, streamed):
        assert (line.id, line.key_name, line.status, line.model) == ("mine", "key 1", 200, "fake/model")
        assert line.completion_tokens == 4 and line.prompt_tokens
        assert 0 < line.first_token_s <= line.total_s
        assert line.body is None
    assert (bad.status, bad.error, bad.prompt_tokens) == (400, "missing_required_parameter", None)
    assert (stranger.status, stranger.error, stranger.key_name) == (401, "invalid_api_key", None)
    for file in tmp_path.iterdir():
        assert b"a secret" not in file.read_bytes()


def test_content_by_choice(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    with running_server(FakeModel(), log_requests=True, log_content=True, store=path) as server:
        server.http().post(CHAT, json=BODY)
    assert b"a secret" in (logged(path)[0].body or b"")


def test_without_the_setting_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    with running_server(FakeModel(), store=path) as server:
        server.http().post(CHAT, json=BODY)
    assert not path.exists()


def test_a_full_disk_costs_lines_not_requests(serve, tmp_path: Path, monkeypatch, caplog) -> None:
    def full(database: Database, lines: list[LoggedRequest]) -> None:
        raise StoreError("the store failed: database or disk is full")

    monkeypatch.setattr("headrace.api.http.request_log.write_log", full)
    server = serve(log_requests=True, store=tmp_path / "store.sqlite3")
    for _ in range(3):
        assert server.http().post(CHAT, json=BODY).status_code == 200
    while 'headrace_log_failures_total{model="fake/model"} 3.0' not in server.http().get("/metrics").text:
        pass
    assert "disk is full" in caplog.text


def test_what_ends_a_stream_early_is_in_its_line(tmp_path: Path) -> None:
    path, engine = tmp_path / "store.sqlite3", FakeEngine()
    engine.failure = EngineStopped("the engine failed")
    with running_server(FakeModel(engine=engine), log_requests=True, store=path) as server:
        assert "the engine failed" in server.http().post(CHAT, json=BODY | {"stream": True}).text
    [line] = logged(path)
    assert (line.status, line.error) == (200, "engine_stopped")
