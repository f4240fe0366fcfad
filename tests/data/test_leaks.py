"""What DuckDB's own switches leave open is refused: no byte outside the datasets, no write, no password."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from data_servers import DataEngineMaker, Listener, Server
from hostile_sql import CANARY, HOSTILE, statements

from headrace.data.ai_calls import PREFIX, has_calls
from headrace.data.engine import AiWishes, DataEngine, SqlLimit
from headrace.data.job import Query
from headrace.data.operator import operator_of
from headrace.data.operators.embed import Embed
from headrace.data.output import TooMuch
from headrace.data.questions import (
    CallType,
    Compute,
    Declare,
    FindHits,
    Row,
    Value,
    decode_question,
    encode_answer,
)
from headrace.data.search_calls import PREFIX as SEARCH_TABLE
from headrace.data.search_calls import has_searches
from headrace.data.worker import Worker, _Run, open_view
from headrace.errors import HeadraceError, InvalidRequest
from headrace.inference.local_models import LocalModels

duckdb = pytest.importorskip("duckdb", reason="needs headrace[data]")

QUICK = 1000
WANTED = int(os.environ.get("HEADRACE_SQL_STATEMENTS", QUICK))
SEED = int(os.environ.get("HEADRACE_SQL_SEED", "1"))
"""Another one draws other statements: many are run in parts, each with a seed of its own."""


class Target:
    """An engine over one harmless dataset, with secrets all around it."""

    def __init__(self, engine: DataEngine, folder: Path, password: str = "") -> None:
        self.engine, self.folder, self.password = engine, folder, password
        self.models = LocalModels()
        self.listener = Listener()
        self.before = self.seen()

    def seen(self) -> dict[str, tuple[int, int]]:
        """Every file, with its size and time, but for the cache: values of models are kept there."""
        files = [one for one in self.folder.rglob("*") if self.folder / "cache" not in (one, *one.parents)]
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}

    def fill(self, sql: str) -> str:
        return sql.replace("{dir}", str(self.folder / "secret")).replace("{port}", str(self.listener.port))

    def attack(self, sql: str) -> str:
        """What came back, whatever it is; it must be free of secrets."""
        try:
            wishes = AiWishes(max_ai_rows=8)
            got = self.engine.sql(
                sql, format="json", ruled=False, models=self.models, wishes=wishes
            ).body.decode()
        except HeadraceError as error:
            got = f"{type(error).__name__}: {error.message}"
        assert CANARY not in got.replace(sql, ""), sql
        assert not self.password or self.password not in got, sql
        return got

    def check(self) -> None:
        assert self.listener.connections == 0
        assert self.seen() == self.before


def secrets_in(folder: Path) -> None:
    folder.mkdir()
    for name in ("secret.txt", "secret.csv"):
        (folder / name).write_text(f"a,b\n{CANARY},1\n")
    (folder / "secret.json").write_text(json.dumps([{"a": CANARY}]))
    with closing(sqlite3.connect(folder / "secret.db")) as database:
        database.execute("CREATE TABLE t (a TEXT)")
        database.execute("INSERT INTO t VALUES (?)", (CANARY,))
        database.commit()


@pytest.fixture
def target(engine: DataEngineMaker, tmp_path: Path) -> Generator[Target]:
    secrets_in(tmp_path / "secret")
    (tmp_path / "orders.csv").write_text("id,name,amount\n1,Ann,10\n2,Bob,20\n")
    made = engine({"orders": f"file:{tmp_path}/orders.csv"}, seconds=2, memory="512MiB")
    made.sql("SELECT 1")
    found = Target(made, tmp_path)
    yield found
    found.listener.close()
    found.models.close()


def test_hostile_statements_are_refused(target: Target) -> None:
    for sql in HOSTILE:
        got = target.attack(target.fill(sql))
        assert got.startswith(("StatementRefused", "SqlFailed", "SqlLimit")), (sql, got)
    target.check()


def test_fuzzed_statements_through_the_engine(target: Target) -> None:
    outcomes = Counter(target.attack(target.fill(sql)).partition(":")[0] for sql in statements(80, seed=1))
    target.check()
    assert outcomes["StatementRefused"] > 10, outcomes


def test_fuzzed_statements_read_nothing_else_and_write_nothing(target: Target) -> None:
    """The guard and the engine behind it in one process; HEADRACE_SQL_STATEMENTS makes them more,
    HEADRACE_SQL_SEED others."""
    worker = Worker(msgspec.msgpack.encode([]))
    connection = worker._connection
    views, _ = target.engine.catalogue.views(None)
    runner = _Run(connection, Query(sql="", views=views), Stub())
    open_view(connection, views[0])
    runner._lock(list(views))
    outcomes: Counter[str] = Counter()
    for sql in statements(WANTED, seed=SEED):
        runner._job = Query(sql=target.fill(sql), views=views, models=True, searches=True)
        outcomes[_outcome(runner, connection)] += 1
    target.check()
    print(dict(outcomes), "with models:", MODEL_CALLS[0])
    assert MODEL_CALLS[0] > WANTED // 50 and SEARCHED[0] > WANTED // 200
    assert outcomes["rows"] > WANTED // 50, outcomes  # it does reach the engine
    assert outcomes["refused"] > WANTED // 50, outcomes


def _outcome(runner: _Run, connection: Any) -> str:
    sql = runner._job.sql
    stop = threading.Timer(5, connection.interrupt)
    stop.start()
    try:
        found = connection.execute(_checked(runner)).fetchmany(1000)
        got, outcome = str(found), "rows"
    except (InvalidRequest, TooMuch) as error:
        got, outcome = str(error), "refused"
    except duckdb.Error as error:
        got, outcome = str(error), "failed"
    finally:
        stop.cancel()
        stub = cast("Stub", runner._ask)
        for number in range(len(stub.types)):
            with suppress(duckdb.Error):
                connection.remove_function(f"{PREFIX}{number}")
        for number in range(len(runner._found)):
            connection.execute(f"DROP TABLE IF EXISTS {SEARCH_TABLE}{number}")
        runner._found = {}
        stub.types = []
    assert CANARY not in got.replace(sql, ""), sql
    return outcome


def _checked(runner: _Run) -> str:
    """The text that runs, with functions of models in place and planned as in the worker."""
    text = runner._check({"orders": "orders"}).text
    tree = runner._dialect.tree(text)
    if has_searches(tree):
        SEARCHED[0] += 1
        runner._search(tree, [])
        text = runner._dialect.text(tree)
    if not has_calls(tree):
        return text
    MODEL_CALLS[0] += 1
    runner._with_models(tree, {"orders": "orders"}, [])
    return runner._dialect.text(tree)


MODEL_CALLS, SEARCHED = [0], [0]


class Stub:
    """Answers as the other side of a fork does, with operators that are checked and models that are none."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def __call__(self, question: bytes) -> bytes:
        asked = decode_question(question)
        if isinstance(asked, FindHits):
            return b'[{"key": "a", "_score": 1.5, "attributes": {"b": "c"}}]'
        if isinstance(asked, Declare):
            operators = [operator_of(site) for site in asked.calls]
            self.types = ["FLOAT[2]" if isinstance(one, Embed) else one.type for one in operators]
            varying = [(one.site.varying, 4 * one.is_condition, one.max_rows or 0) for one in operators]
            return encode_answer(
                [CallType(of_type, *one) for of_type, one in zip(self.types, varying, strict=True)]
            )
        rows = asked.rows if isinstance(asked, Compute) else []
        return encode_answer([self.value(asked.call, row) for row in rows])

    def value(self, call: int, row: Row) -> Value:
        if None in row:
            return None
        size = sum(len(text or "") for text in row)
        values: dict[str, Value] = {
            "BOOLEAN": size % 2 == 0,
            "DOUBLE": size / 7,
            "VARCHAR": "".join(text or "" for text in row)[::-1],
            "FLOAT[2]": bytes(8),
        }
        return values.get(self.types[call])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 2000000000)",
        "SELECT count(*) FROM range(10000000000) a, range(10000000000) b",
        "WITH RECURSIVE r AS (SELECT 1 a UNION ALL SELECT a + 1 FROM r) SELECT count(*) FROM r",
        "SELECT list_aggregate(list_transform(range(100000000), lambda x: repeat('x', 1000)), 'count')",
        "SELECT regexp_replace(repeat('a', 50000000), '(a*)*b', '')",
        "SELECT length(string_agg(repeat('x', 100000) || range)) FROM range(100000)",
    ],
)
def test_bombs_end_at_the_limits(target: Target, sql: str) -> None:
    began = time.monotonic()
    try:  # what a quick machine computes within the limits is none
        target.engine.sql(sql)
    except SqlLimit as error:
        assert re.search(r"needs more than|takes more than", str(error))
    else:
        assert "regexp_replace" in sql
    assert time.monotonic() - began < 2 + 10  # the limit, and a busy machine
    assert target.attack("SELECT count(*) n FROM orders") == '[{"n":2}]'


def test_postgres_shows_only_the_dataset(
    engine: DataEngineMaker,
    postgres: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    postgres.run("DROP TABLE IF EXISTS shown, hidden")
    postgres.run("CREATE TABLE shown AS SELECT 1 AS id, 'ok' AS name")
    postgres.run(f"CREATE TABLE hidden AS SELECT '{CANARY}' AS a")
    monkeypatch.setenv("TEST_POSTGRES_PASSWORD", postgres.password)
    secrets_in(tmp_path / "secret")
    made = engine({"shown": postgres.dataset("public.shown")}, seconds=5)
    target = Target(made, tmp_path, postgres.password)
    target.before = target.seen()
    assert target.attack("SELECT * FROM shown") == '[{"id":1,"name":"ok"}]'
    for sql in (
        'SELECT * FROM "__source_shown".public.hidden',
        'SELECT * FROM "__source_shown".pg_catalog.pg_shadow',
        "SELECT * FROM postgres_query('__source_shown', 'SELECT pg_sleep(100)')",
        "SELECT * FROM postgres_scan('', 'public', 'hidden')",
        "CALL postgres_execute('__source_shown', 'DROP TABLE shown')",
        "SELECT path FROM duckdb_databases()",
        "SELECT * FROM duckdb_secrets(redact = false)",
        "SELECT * FROM which_secret('', 'postgres')",
        "INSERT INTO \"__source_shown\".public.shown VALUES (2, 'x')",
        "DELETE FROM shown RETURNING *",
        "DETACH __source_shown",
        "WITH a AS (DELETE FROM shown RETURNING *) SELECT * FROM a",
        "SELECT name::int FROM shown",
    ):
        got = target.attack(sql)
        assert got.startswith(("StatementRefused", "SqlFailed")), (sql, got)
    target.check()
    target.models.close()
    assert postgres.run("SELECT count(*) FROM shown") == "1"


def test_a_failed_login_tells_no_password(
    engine: DataEngineMaker, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgres://owner:wrong-pass-word@127.0.0.1:{postgres.port}/postgres"
    for secret in ("wrong-pass-word", url):
        monkeypatch.setenv("TEST_POSTGRES_PASSWORD", secret)
        made = engine({"shown": postgres.dataset("public.shown")})
        with pytest.raises(HeadraceError, match="dataset 'shown' cannot be opened") as caught:
            made.sql("SELECT * FROM shown")
        assert "wrong-pass-word" not in caught.value.message
