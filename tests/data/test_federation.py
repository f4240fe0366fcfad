"""Statements over real sources give the rows that one DuckDB with all data in it gives."""

from __future__ import annotations

import functools
import http.server
import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataEngineMaker, Listener, Server

from headrace.data.client import Rows
from headrace.data.engine import DataEngine, SourceDown
from headrace.errors import InvalidRequest

duckdb = pytest.importorskip("duckdb", reason="needs headrace[data]")

PEOPLE = [(i, f"name {i} é'\"", ["oslo", "rome", None][i % 3]) for i in range(1, 41)]
ORDERS = [(i, i % 40 + 1, round(i * 1.25, 2), f"2026-0{i % 9 + 1}-01") for i in range(1, 301)]
PARTS = [(i, f"part {i % 7}", i % 2 == 0) for i in range(1, 61)]
NOTES = [(i, f"note, {i}\nnext") for i in range(1, 21)]
CITIES = [("oslo", 700000), ("rome", 2800000), ("bern", 134000)]
LINES = [(i, i % 60 + 1, i % 5) for i in range(1, 301)]
FLAGS = [(i, i % 4) for i in range(1, 41)]

QUERIES = """
SELECT * FROM people
SELECT count(*), sum(amount), min(day), max(day) FROM orders
SELECT p.name, o.amount FROM people p JOIN orders o ON o.person = p.id WHERE o.amount > 300
SELECT p.city, sum(o.amount) FROM people p JOIN orders o ON o.person = p.id GROUP BY p.city
SELECT c.city, c.people, count(p.id) FROM cities c LEFT JOIN people p USING (city) GROUP BY ALL
SELECT * FROM people p ANTI JOIN orders o ON o.person = p.id
SELECT l.line, t.part FROM lines l JOIN parts t ON t.id = l.part WHERE t.stocked
SELECT t.part, avg(l.number) FROM lines l JOIN parts t ON t.id = l.part GROUP BY t.part HAVING count(*) > 10
SELECT n.id, upper(n.note) FROM notes n WHERE n.note LIKE '%1%'
SELECT f.flag, count(*) FROM flags f JOIN people p ON p.id = f.id GROUP BY f.flag
SELECT p.id FROM people p WHERE p.city IS NULL
SELECT p.id FROM people p WHERE p.city = 'rome' AND p.id IN (SELECT person FROM orders WHERE amount > 200)
SELECT p.id FROM people p WHERE EXISTS (SELECT 1 FROM notes n WHERE n.id = p.id)
SELECT id, row_number() OVER (PARTITION BY city ORDER BY id) FROM people
SELECT id, amount - lag(amount) OVER (ORDER BY id) FROM orders
WITH big AS (SELECT * FROM orders WHERE amount > 100) SELECT person, count(*) FROM big GROUP BY person
WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 9) \
SELECT r.i, p.name FROM r JOIN people p ON p.id = r.i
SELECT city FROM people UNION SELECT city FROM cities
SELECT city FROM cities EXCEPT SELECT city FROM people
SELECT id FROM people INTERSECT SELECT person FROM orders
SELECT * FROM (SELECT person, amount FROM orders) PIVOT (sum(amount) FOR person IN (1, 2, 3))
SELECT DISTINCT ON (city) city, id FROM people ORDER BY city, id
SELECT person, sum(amount) FROM orders GROUP BY ROLLUP (person)
SELECT id FROM people ORDER BY name DESC LIMIT 5 OFFSET 3
SELECT strftime(day::DATE, '%Y-%m') AS month, sum(amount) FROM orders GROUP BY month
SELECT list(part ORDER BY id) FROM parts WHERE id < 9
SELECT CASE WHEN amount > 100 THEN 'big' ELSE 'small' END AS size, count(*) FROM orders GROUP BY size
SELECT p.name, o.amount, n.note, f.flag, l.number, t.part, c.people FROM people p \
JOIN orders o ON o.person = p.id JOIN notes n ON n.id = p.id JOIN flags f ON f.id = p.id \
JOIN lines l ON l.line = o.id JOIN parts t ON t.id = l.part JOIN cities c USING (city)
SELECT max(amount) FILTER (WHERE person < 10), count(DISTINCT person) FROM orders
SELECT a.id, b.id FROM notes a CROSS JOIN notes b WHERE a.id + b.id = 21
SELECT regexp_extract(name, '[0-9]+')::INTEGER AS n, length(name) FROM people
""".strip().splitlines()


def literals(rows: list[Any]) -> str:
    def one(value: object) -> str:
        if value is None:
            return "NULL"
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

    return ", ".join("(" + ", ".join(map(one, row)) + ")" for row in rows)


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Generator[tuple[Path, int]]:
    """A folder on a server of this machine."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Files, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def everything(
    engine: DataEngineMaker,
    postgres: Server,
    mysql: Server,
    web: tuple[Path, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[DataEngine, Any]:
    """An engine over seven kinds of sources, and a DuckDB with all of it."""
    monkeypatch.setenv("TEST_POSTGRES_PASSWORD", postgres.password)
    monkeypatch.setenv("TEST_MYSQL_PASSWORD", mysql.password)
    one = duckdb.connect()
    for name, columns, rows in (
        ("people", "id INTEGER, name VARCHAR, city VARCHAR", PEOPLE),
        ("orders", "id INTEGER, person INTEGER, amount DECIMAL(10, 2), day VARCHAR", ORDERS),
        ("parts", "id BIGINT, part VARCHAR, stocked BOOLEAN", PARTS),
        ("notes", "id BIGINT, note VARCHAR", NOTES),
        ("cities", "city VARCHAR, people BIGINT", CITIES),
        ("lines", "line BIGINT, part BIGINT, number BIGINT", LINES),
        ("flags", "id BIGINT, flag BIGINT", FLAGS),
    ):
        one.execute(f"CREATE TABLE {name} ({columns})")
        one.execute(f"INSERT INTO {name} VALUES {literals(rows)}")
    postgres.run("DROP TABLE IF EXISTS people")
    postgres.run(
        f"CREATE TABLE people (id int, name text, city text); INSERT INTO people VALUES {literals(PEOPLE)}"
    )
    mysql.run("DROP TABLE IF EXISTS shop.orders")
    mysql.run("CREATE TABLE shop.orders (id int, person int, amount decimal(10, 2), day varchar(20))")
    mysql.run(f"INSERT INTO shop.orders VALUES {literals(ORDERS)}")
    with closing(sqlite3.connect(tmp_path / "flags.db")) as database:
        database.execute("CREATE TABLE flags (id INTEGER, flag INTEGER)")
        database.executemany("INSERT INTO flags VALUES (?, ?)", FLAGS)
        database.commit()
    one.execute(f"COPY parts TO '{tmp_path}/parts.parquet'")
    one.execute(f"COPY notes TO '{tmp_path}/notes.csv'")
    (tmp_path / "cities.json").write_text(json.dumps([{"city": c, "people": p} for c, p in CITIES]))
    folder, port = web
    one.execute(f"COPY lines TO '{folder}/lines.parquet'")
    made = engine(
        {
            "people": postgres.dataset("public.people"),
            "orders": mysql.dataset("orders"),
            "flags": f"sqlite:{tmp_path}/flags.db#flags",
            "parts": f"file:{tmp_path}/*.parquet",
            "notes": f"file:{tmp_path}/notes.csv",
            "cities": f"file:{tmp_path}/cities.json",
            "lines": f"http://127.0.0.1:{port}/lines.parquet",
        }
    )
    return made, one


def rows_of(engine: DataEngine, sql: str) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in Rows(engine.sql(sql, ruled=False)).arrow().columns]
    return list(zip(*columns, strict=True))


def test_every_statement_gives_the_rows_of_one_database(everything: tuple[DataEngine, Any]) -> None:
    engine, one = everything
    assert len(QUERIES) >= 30
    for sql in random.Random(4).sample(QUERIES, len(QUERIES)):
        expected = one.execute(sql).fetchall()
        got = rows_of(engine, sql)
        if "ORDER BY name" not in sql:
            expected, got = sorted(expected, key=repr), sorted(got, key=repr)
        assert got == expected, sql


def test_a_source_that_is_down_is_named_and_others_go_on(engine: DataEngineMaker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "lying.parquet").write_bytes(b"PAR1" + b"\xff" * 60 + (2**30).to_bytes(4, "little") + b"PAR1")
    made = engine(
        {
            "here": f"file:{tmp_path}/a.csv",
            "gone": f"file:{tmp_path}/no.csv",
            "lying": f"file:{tmp_path}/lying.parquet",
            "down": {"from": "postgres:t", "port": 1, "user": "a"},
        }
    )
    for name in ("gone", "lying", "down"):
        with pytest.raises(SourceDown, match=f"dataset '{name}' cannot be opened"):
            made.sql(f"SELECT * FROM {name}")
    assert rows_of(made, "SELECT * FROM here") == [(1,)]


def test_arrow_excel_and_duckdb_files(engine: DataEngineMaker, tmp_path: Path) -> None:
    feather = pytest.importorskip("pyarrow.feather")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as database:
        database.execute("CREATE TABLE t AS SELECT 3 AS x")
        feather.write_feather(database.execute("SELECT 5 AS x").to_arrow_table(), tmp_path / "a.arrow")
    made = engine({"d": f"duckdb:{tmp_path}/a.duckdb#t", "f": f"file:{tmp_path}/a.arrow"})
    assert rows_of(made, "SELECT d.x, f.x AS y FROM d, f") == [(3, 5)]


def test_views_in_duckdb_files_are_not_read(engine: DataEngineMaker, tmp_path: Path) -> None:
    """Who wrote the file has made them, and they would be read with the rights of this process."""
    (tmp_path / "secret.csv").write_text("x\nsecret\n")
    with closing(sqlite3.connect(tmp_path / "a.db")) as made_by_sqlite:
        made_by_sqlite.execute("CREATE TABLE t (x TEXT)")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as database:
        database.execute("CREATE SCHEMA s")
        database.execute('CREATE TABLE s."T" AS SELECT 3 AS x')
        database.execute(f"CREATE VIEW v AS SELECT * FROM read_csv('{tmp_path}/secret.csv')")
        database.execute("CREATE VIEW inside AS SELECT * FROM duckdb_databases()")
    file = f"duckdb:{tmp_path}/a.duckdb"
    made = engine(
        {
            "good": f"{file}#s.t",
            "v": f"{file}#v",
            "inside": f"{file}#inside",
            "other": f"sqlite:{tmp_path}/a.db#t",
            "copied": {"from": f"{file}#v", "accelerate": {}},
        }
    )
    for name in ("v", "inside", "copied"):
        with pytest.raises(SourceDown, match="views of files are not read"):
            made.sql(f"SELECT * FROM {name}, other")
    assert rows_of(made, "SELECT * FROM good") == [(3,)]


def test_a_source_is_asked_only_by_statements_that_name_it(engine: DataEngineMaker, tmp_path: Path) -> None:
    """Also where it has a copy that cannot be made, or a secret that is not there."""
    (tmp_path / "a.csv").write_text("x\n1\n")
    listener = Listener()
    address = f"http://127.0.0.1:{listener.port}/b.csv"
    made = engine(
        {
            "here": f"file:{tmp_path}/a.csv",
            "copied": {"from": address, "accelerate": {"every_s": 1}},
            "locked": {"from": address, "secret": "env:HEADRACE_TEST_NO_SUCH_SECRET"},
        }
    )
    assert rows_of(made, "SELECT * FROM here") == [(1,)]
    assert listener.connections == 0 and made.copies.errors == {}
    with pytest.raises(SourceDown, match="HEADRACE_TEST_NO_SUCH_SECRET is not set"):
        made.sql("SELECT * FROM LOCKED")
    assert listener.connections == 0
    with pytest.raises(SourceDown, match="'copied' cannot be opened") as first:
        made.sql("SELECT * FROM Copied")
    asked = listener.connections
    assert asked > 0
    with pytest.raises(SourceDown) as second:  # it is not tried again at once
        made.sql("SELECT * FROM copied")
    assert listener.connections == asked and second.value.message == first.value.message
    listener.close()


def test_the_signature_of_an_address_is_in_no_message(engine: DataEngineMaker, tmp_path: Path) -> None:
    made = engine({"signed": "http://127.0.0.1:1/a.csv?signature=c4n4ry"})
    with pytest.raises(SourceDown, match="'signed' cannot be opened") as failed:
        made.sql("SELECT * FROM signed")
    assert "c4n4ry" not in failed.value.message and "read_csv" not in failed.value.message


def test_dates_that_python_does_not_know(engine: DataEngineMaker, tmp_path: Path) -> None:
    """PostgreSQL's infinity above all, and years before 1 and after 9999."""
    (tmp_path / "a.csv").write_text("x\n1\n")
    made = engine({"here": f"file:{tmp_path}/a.csv"})
    values = {
        "'infinity'::DATE": "infinity",
        "'-infinity'::TIMESTAMP": "-infinity",
        "'infinity'::TIMESTAMPTZ": "infinity",
        "DATE '0044-03-15 (BC)'": "-0043-03-15",
        "DATE '12026-01-02'": "12026-01-02",
        "TIMESTAMP '12026-01-02 03:04:05'": "12026-01-02T03:04:05.000000",
        "DATE '2026-01-02'": "2026-01-02",
    }
    sql = f"SELECT {', '.join(values)} UNION ALL SELECT {', '.join(['NULL'] * len(values))}"
    rows = json.loads(made.sql(sql, format="json").body)
    assert [list(row.values()) for row in rows] == [list(values.values()), [None] * len(values)]
    assert made.sql(sql, format="csv").body.decode().splitlines()[1] == ",".join(values.values())
    for sql, words in (
        ("SELECT [DATE '12026-01-02']", "CAST it to VARCHAR"),
        ("SELECT 'x'::VARIANT", "VARIANT"),
        ("SELECT 1e400", "too large"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            made.sql(sql, format="json")


def test_rules_of_a_role(engine: DataEngineMaker, tmp_path: Path) -> None:
    """A condition of a statement is not evaluated on rows that a rule removes: its error would tell them."""
    (tmp_path / "a.csv").write_text("id,region,wage\n1,eu,10\n2,us,HIDDEN-20\n")
    rules = {"where": {"analyst": "region = 'eu'"}, "columns": {"analyst": ["id", "wage"], "*": ["id"]}}
    made = engine(
        {"staff": {"from": f"file:{tmp_path}/a.csv"} | rules, "open": f"file:{tmp_path}/a.csv"},
        role="guest",
        keys={"ann": {"role": "analyst"}},
    )
    found = made.sql("SELECT * FROM staff", key="ann", format="json").body
    assert found == b'[{"id":1,"wage":"10"}]'
    for sql in ("SELECT wage::INT FROM staff", "SELECT id FROM staff WHERE wage::INT > 0"):
        assert b"HIDDEN" not in made.sql(sql, key="ann", format="json").body
    with pytest.raises(InvalidRequest, match="region"):
        made.sql("SELECT region FROM staff", key="ann")
    with pytest.raises(InvalidRequest, match="no dataset is named 'staff'"):
        made.sql("SELECT * FROM staff")  # a guest has columns, but no rule for rows
    with pytest.raises(InvalidRequest, match="rules"):
        made.sql("SELECT * FROM staff", key="ann", explain=True)
    assert len(rows_of(made, "SELECT * FROM staff")) == 2


def test_copies_full_and_appended(engine: DataEngineMaker, tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("id,at\n1,2026-01-01\n2,2026-01-02\n")
    made = engine(
        {
            "whole": {"from": f"file:{source}", "accelerate": {}},
            "added": {"from": f"file:{source}", "accelerate": {"refresh": "append", "time_column": "at"}},
        }
    )
    for name in ("whole", "added"):
        assert rows_of(made, f"SELECT count(*) FROM {name}") == [(2,)]
    source.write_text("id,at\n9,2026-01-02\n3,2026-01-03\n")
    assert made.copies.refresh(made.catalogue.find("whole")) == 2
    assert made.copies.refresh(made.catalogue.find("added")) == 3
    assert rows_of(made, "SELECT list(id ORDER BY id) FROM whole") == [([3, 9],)]
    assert rows_of(made, "SELECT list(id ORDER BY id) FROM added") == [([1, 2, 3],)]
    source.unlink()
    with pytest.raises(SourceDown, match="'whole'"):
        made.copies.refresh(made.catalogue.find("whole"))
    assert rows_of(made, "SELECT count(*) FROM whole") == [(2,)]


def test_times_of_day_keep_their_offset(engine: DataEngineMaker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    made = engine({"a": f"file:{tmp_path}/a.csv"})
    sql = "SELECT '12:30:00+02'::TIMETZ AS t, x, '01:00'::TIME AS \"t\" FROM a ORDER BY t"
    found = json.loads(made.sql(sql, format="json", ruled=False).body)
    assert found == [{"t": "12:30:00+02", "x": 1, "t_1": "01:00:00"}]


def test_columns_without_rows(engine: DataEngineMaker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n")
    made = engine({"a": f"file:{tmp_path}/a.csv"})
    found = made.sql(
        "SELECT x + $2 AS z, y FROM a WHERE y = $1 ORDER BY 1 -- all", ruled=False, describe=True
    )
    assert [(column.name, column.type) for column in found.columns] == [("z", "BIGINT"), ("y", "VARCHAR")]
    assert found.rows == 0


def test_a_pivot_by_rows_says_what_to_write(engine: DataEngineMaker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n")
    made = engine({"a": f"file:{tmp_path}/a.csv"})
    with pytest.raises(InvalidRequest, match="FOR city IN"):
        made.sql("PIVOT a ON y USING sum(x)", ruled=False)
    with pytest.raises(InvalidRequest, match="only SELECT may run"):
        made.sql("DELETE FROM a", ruled=False)


def test_no_network_is_needed(tmp_path: Path) -> None:
    """Every extension of the extra loads where there is no network at all."""
    alone = ["unshare", "-n"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this needs the right to make a network namespace")
    (tmp_path / "a.csv").write_text("x\n1\n")
    datasets = {
        "a": f"file:{tmp_path}/a.csv",
        "b": {"from": f"file:{tmp_path}/b.xlsx"},
        "c": {"from": "postgres:t"},
        "d": {"from": "mysql:t"},
        "e": "sqlite:x.db#t",
        "f": "https://example.invalid/x.csv",
    }
    script = (
        "import headrace.data.client as c\n"
        f"with c.Data(datasets={datasets!r}) as d: print(d.sql('SELECT x FROM a').rows())"
    )
    done = subprocess.run([*alone, sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[{'x': 1}]\n", done.stderr
