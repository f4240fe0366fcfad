"""What requests did, as a table: by key over HTTP, and whole from the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_process import running_server

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytest.importorskip("duckdb", reason="needs headrace[data]")

SECRET = "a word that nobody may read"
BODY = {
    "messages": [{"role": "user", "content": SECRET}],
    "max_tokens": 3,
    "chat_template_kwargs": {"in_scope": False},
}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ALL = "SELECT * FROM headrace.task_history ORDER BY start_time"
COLUMNS = [
    *("trace_id", "span_id", "parent_span_id", "task", "input", "captured_output", "start_time"),
    *("end_time", "execution_duration_ms", "error_message", "labels"),
]


def rows(http: httpx.Client, sql: str = ALL, key: str = "user") -> list[dict[str, Any]]:
    reply = http.post("/v1/sql", json={"sql": sql}, headers={"authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(http: httpx.Client, key: str = "user", **body: Any) -> None:
    headers = {"authorization": f"Bearer {key}", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    http.post("/v1/chat/completions", json=BODY | body, headers=headers)


@pytest.fixture(scope="module")
def model() -> Any:
    loaded = load_model("mini", EngineOptions())
    yield loaded
    loaded.close()


def test_rows_are_the_parts_of_requests(model: Any) -> None:
    with running_server(model, api_key="user", admin_api_key="boss") as server:
        http = server.http()
        chat(http)
        chat(http, n=0)
        chat(http, key="boss")
        found = rows(http)
        assert list(found[0]) == COLUMNS
        whole, failed = [one for one in found if one["parent_span_id"] == PARENT]
        assert {one["trace_id"] for one in found} == {TRACE}
        assert (whole["task"], whole["error_message"], failed["error_message"]) == (
            *("ai_chat", None),
            "invalid_value",
        )
        labels = dict(whole["labels"])
        assert labels["path"] == "/v1/chat/completions" and labels["output_tokens"] == "3"
        ids = {one["span_id"]: one for one in found}
        parts = [one for one in found if one["parent_span_id"] in ids]
        assert len(ids) == len(found) == len(parts) + 2
        tasks = {one["task"]: one for one in parts}
        assert {"prepare", "tokenize", "ai_completion", "decode"} <= tasks.keys()
        assert ids[tasks["decode"]["parent_span_id"]]["task"] == "ai_completion"
        for one in parts:
            assert whole["start_time"] <= one["start_time"] <= one["end_time"]
        assert not any(one["input"] or one["captured_output"] for one in found)
        assert SECRET not in json.dumps(found)

        count = "SELECT count(DISTINCT span_id) AS n FROM runtime.task_history WHERE task = 'ai_chat'"
        assert rows(http, count) == [{"n": 2}]
        assert rows(http, count, key="boss") == [{"n": 3}]
        mine = rows(http, "SELECT labels['rows'] AS n FROM Headrace.Task_History WHERE task = 'sql_query'")
        assert {one["n"] for one in mine} >= {"1", None}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM task_history",
        'SELECT * FROM "headrace.task_history"',
        "SELECT * FROM main.headrace.task_history",
        "SELECT * FROM memory.headrace.task_history",
        "SELECT * FROM other.task_history",
        "SELECT * FROM __task_history, headrace.task_history",
        "SELECT * FROM headrace.task_history AT (VERSION => 1)",
        "SELECT * FROM headrace.request_log, headrace.task_history",
        "WITH x AS (SELECT 1) SELECT * FROM headrace.x -- task_history",
        "DELETE FROM headrace.task_history",
    ],
)
def test_nothing_beside_it_is_read(model: Any, sql: str) -> None:
    with running_server(model) as server:
        reply = server.http().post("/v1/sql", json={"sql": sql})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "sql_refused")


def test_what_was_said_where_the_operator_wants_it(model: Any, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite3"
    with running_server(model, log_requests=True, log_content=True, store=store) as server:
        http = server.http()
        chat(http)
        rows(http, "SELECT 'a value' AS v, count(*) AS n FROM headrace.task_history")
        said = {one["task"]: one["input"] or "" for one in rows(http)}
        assert SECRET in said["ai_chat"]
        statements = rows(
            http, "SELECT input FROM headrace.task_history WHERE input LIKE 'SELECT ''a value%'"
        )
        assert len(statements) == 1
        # The command reads the store of the server that runs.
        sql = "SELECT DISTINCT trace_id FROM headrace.task_history WHERE task = 'ai_chat'"
        command = [sys.executable, "-m", "headrace", "sql", "-c", sql, "--format", "json"]
        done = subprocess.run([*command, "--store", str(store)], capture_output=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [{"trace_id": TRACE}]
