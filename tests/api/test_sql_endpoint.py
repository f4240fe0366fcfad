"""SQL over HTTP: forms of replies, limits of keys, errors."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_process import Running
from msgspec.structs import replace

from headrace.api.statements import RUNNING, WAITING, checked_settings
from headrace.errors import UsageError

pytest.importorskip("duckdb", reason="needs headrace[data]")

SQL = "SELECT name, count(*) AS n FROM people GROUP BY name ORDER BY name"
SPICE = "application/vnd.spiceai.sql.v1+json"


@pytest.fixture
def served(serve: Callable[..., Running], tmp_path: Path) -> Running:
    (tmp_path / "people.csv").write_text("name,city\nAnn,Oslo\nBob,Rome\nBob,Bern\n")
    people: dict[str, Any] = {"from": f"file:{tmp_path}/people.csv"}
    limits = {"rows": 100, "seconds": 5, "keys": {"few": {"rows": 1}}}
    ruled = people | {"where": {"analyst": "city = 'Oslo'"}}
    gone = f"file:{tmp_path}/gone.csv"
    return serve(datasets={"people": people, "ruled": ruled, "gone": gone}, sql=limits)


def test_forms_of_replies(served: Running) -> None:
    http = served.http()
    rows = [{"name": "Ann", "n": 1}, {"name": "Bob", "n": 2}]
    assert http.post("/v1/sql", json={"sql": SQL}).json() == rows
    assert http.post("/v1/sql", content=SQL, headers={"content-type": "text/plain"}).json() == rows
    csv = http.post("/v1/sql", json={"sql": SQL}, headers={"accept": "text/csv"})
    assert csv.text == "name,n\nAnn,1\nBob,2\n"
    spice = http.post("/v1/sql", json={"sql": SQL}, headers={"accept": SPICE})
    assert spice.headers["content-type"] == SPICE
    body = spice.json()
    assert body["row_count"] == 2
    assert body["data"] == rows
    assert [one["name"] for one in body["schema"]] == ["name", "n"]
    arrow = http.post("/v1/sql", json={"sql": SQL}, headers={"accept": "application/vnd.apache.arrow.stream"})
    ipc = pytest.importorskip("pyarrow.ipc")
    assert ipc.open_stream(io.BytesIO(arrow.content)).read_all().to_pylist() == rows
    columns = http.post("/v1/sql", json={"sql": SQL, "describe": True}).json()
    assert columns == [{"name": "name", "type": "VARCHAR"}, {"name": "n", "type": "BIGINT"}]
    given = {"sql": "SELECT ? + $2 AS x, $1 AS y", "parameters": [1, 2]}
    assert http.post("/v1/sql", json=given | {"sql": "SELECT $1 + $2 AS x"}).json() == [{"x": 3}]
    plan = http.post("/v1/sql/explain", json={"sql": SQL}).json()
    assert plan["datasets"] == ["people"]
    assert "READ_CSV" in plan["plan"]


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"sql": "show me people"}, 400, "sql_refused", "not a statement of SQL"),
        ({"sql": "SHOW TABLES"}, 400, "sql_refused", "no SELECT: the datasets are people, gone"),
        ({"sql": "SELECT 1; SELECT 2"}, 400, "sql_refused", "2 statements"),
        ({"sql": "SELECT * FROM peeple"}, 400, "sql_refused", "did you mean 'people'"),
        ({"sql": "SELECT * FROM ruled"}, 400, "sql_refused", "no dataset is named 'ruled'"),
        ({"sql": "SELECT nme FROM people"}, 400, "sql_failed", "name"),
        ({"sql": "SELECT 'é"}, 400, "sql_refused", "unterminated"),
        ({"sql": "SELECT * FROM gone"}, 502, "dataset_unavailable", "'gone'"),
        ({"sql": "SELECT * FROM range(101)"}, 400, "sql_limit", "more than 100 rows"),
        ({"sql": "SELECT * FROM people", "max_rows": 2}, 400, "sql_limit", "more than 2 rows"),
        ({"sql": "SELECT 1", "rows": 2}, 400, None, "rows"),
        ({"sql": ""}, 400, None, "sql"),
    ],
)
def test_errors(served: Running, body: Any, status: int, code: str | None, words: str) -> None:
    reply = served.http().post("/v1/sql", json=body)
    assert reply.status_code == status, reply.text
    assert words in reply.json()["error"]["message"]
    assert code is None or reply.json()["error"]["code"] == code


def test_datasets_that_a_key_reads(served: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_ALL_S", 120.0), ("KEPT_S", 1e6)):  # of a slow machine
        monkeypatch.setattr(f"headrace.data.source_probes.{name}", seconds)
    monkeypatch.setattr("headrace.data.engine.PROBE_S", 120.0)
    people, gone = served.http().get("/v1/datasets").json()
    assert (people["name"], people["from"], people["status"], people["error"]) == (
        "people",
        "file",
        "ready",
        None,
    )
    assert (gone["name"], gone["status"]) == ("gone", "error")
    assert "'gone' cannot be opened" in gone["error"]
    (tmp_path / "gone.csv").write_text("a\n1\n")
    assert served.http().get("/v1/datasets").json()[1] == gone  # for some seconds
    monkeypatch.setattr("headrace.data.source_probes.KEPT_S", 0.0)
    assert served.http().get("/v1/datasets").json()[1]["status"] == "ready"


def test_a_source_that_hangs_is_called_down(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.data.engine.PROBE_S", 0.3)
    monkeypatch.setenv("HANGING_PASSWORD", "s3cret of mine")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = {
            "from": "postgres:public.t",
            "host": "127.0.0.1",
            "port": silent.getsockname()[1],
            "user": "u",
            "secret": "env:HANGING_PASSWORD",
        }
        served = serve(datasets={"hanging": hanging, "lost": hanging | {"secret": "env:NOT_THERE"}})
        hanging, lost = served.http().get("/v1/datasets").json()
    assert hanging["error"].startswith("dataset 'hanging' did not open in 0.3 s")
    assert "NOT_THERE is not set" in lost["error"]
    assert "s3cret" not in str(hanging) + str(lost)


def test_who_waits_for_sources_keeps_no_statement_waiting(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.data.source_probes._ALL_S", 600.0)
    asked, answers = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        asked.set()
        answers.wait()

    monkeypatch.setattr("headrace.data.source_probes.SourceProbes._probe", wait)
    with ThreadPoolExecutor(RUNNING + WAITING + 1) as threads:
        lists = [
            threads.submit(lambda: served.http().get("/v1/datasets", timeout=600))
            for _ in range(RUNNING + WAITING + 1)
        ]
        try:
            asked.wait()
            time.sleep(0.3)  # the others wait, too
            reply = served.http().post("/v1/sql", json={"sql": "SELECT 1"}, timeout=120)
        finally:
            answers.set()
        assert reply.status_code == 200, reply.text
        assert {one.result().status_code for one in lists} == {200}


def test_no_datasets(server: Running) -> None:
    assert server.http().get("/v1/datasets").json() == []
    reply = server.http().post("/v1/sql", json={"sql": "SELECT 1"})
    assert reply.status_code == 501
    assert "[datasets]" in reply.json()["error"]["message"]


def workers() -> set[int]:
    """Workers of SQL of this process, and forks of them, that use the CPU."""
    return {int(one.name) for one in Path("/proc").glob("[0-9]*") if _works(one)}


def _works(process: Path) -> bool:
    state = _read(process / "stat").rpartition(b") ")[2][:1]
    is_worker = state == b"R" and b"headrace.data.worker" in _read(process / "cmdline")
    return is_worker and _is_ours(process)  # tests beside this one have workers, too


def _is_ours(process: Path) -> bool:
    parent = (_read(process / "stat").rpartition(b") ")[2].split() or [b"", b"0"])[1]
    return int(parent) == os.getpid() or (int(parent) > 1 and _is_ours(Path("/proc") / parent.decode()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_client_that_leaves_ends_its_statement(serve: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    running = serve(datasets={"a": {"from": f"file:{tmp_path}/a.csv"}}, sql={"seconds": 60, "parallel": 1})
    before = workers()
    endless = "SELECT sum(a.range * b.range % 7) FROM range(10000000000) a, range(100000) b"
    with pytest.raises(httpx.ReadTimeout):
        running.http().post("/v1/sql", json={"sql": endless}, timeout=httpx.Timeout(20, read=3))
    answered = poll_until(lambda: running.http().post("/v1/sql", json={"sql": "SELECT 1 AS x"}), 200)
    assert answered == [{"x": 1}]  # its place is free
    end = time.monotonic() + 20
    while workers() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert not workers() - before


def poll_until(ask: Callable[[], httpx.Response], status: int) -> Any:
    end = time.monotonic() + 20  # a third of the limit of the statement that was left
    while (reply := ask()).status_code != status and time.monotonic() < end:
        time.sleep(0.05)
    assert reply.status_code == status, reply.text
    return reply.json()


def test_new_settings_make_a_new_engine(served: Running, tmp_path: Path) -> None:
    http, service = served.http(), served.server.config.app.state.service  # type: ignore[union-attr]
    assert http.post("/v1/sql", json={"sql": "SELECT count(*) AS n FROM people"}).json() == [{"n": 3}]
    (tmp_path / "more.csv").write_text("x\n1\n")
    before = service.settings
    datasets = {"more": {"from": f"file:{tmp_path}/more.csv"}}
    service.configure(replace(before, datasets=datasets))
    assert http.post("/v1/sql", json={"sql": "SELECT x FROM more"}).json() == [{"x": 1}]
    assert http.post("/v1/sql", json={"sql": "SELECT * FROM people"}).status_code == 400
    with pytest.raises(UsageError):
        checked_settings(replace(before, datasets={"a": {"form": "file:x.csv"}}))
