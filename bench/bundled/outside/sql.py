"""Questions over tables, scored by the rows that SQLite gives on databases of shuffled rows."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence

from .case import Answer, Case, lines_of

DATABASES = 4
ROWS = 14
LIMIT_S = 2.0
Column = tuple[str, str]  # its name, and its values as the file writes them
Tables = dict[str, list[Column]]


def cases(name: str, job: str) -> Iterator[Case]:
    """Those of a file, one for each question."""
    tables: Tables = {}
    for line in lines_of(name):
        question, arrow, statements = line.partition(" => ")
        if arrow:
            yield _case(job, tables, question, statements.split(" || "))
        elif line:
            table, columns = line.split(": ", 1)
            tables[table] = [_column(one) for one in columns.split("; ")]
        else:
            tables = {}


def _column(text: str) -> Column:
    name, mark, values = re.split(r"([=>])", text, maxsplit=1)
    return name, values if mark == "=" else ">" + values


def _case(job: str, tables: Tables, question: str, statements: Sequence[str]) -> Case:
    tables = dict(tables)
    lines = [f"Table {name} ({', '.join(one for one, _ in columns)})" for name, columns in tables.items()]

    def is_right(answer: Answer) -> bool:
        return scored(tables, statements, answer.text)

    return Case(job, "\n".join([*lines, question]), statements[0], is_right)


def scored(tables: Tables, statements: Sequence[str], text: str) -> bool:
    """Whether one of `statements` gives the same rows as the text on every database. Columns may have another
    order; rows too, unless the statement that is expected sorts them."""
    text = text.strip().removeprefix("```sql").strip("`\n ").rstrip(";")
    databases = [make_database(tables, seed) for seed in range(DATABASES)]
    try:
        got = [rows_of(one, text) for one in databases]
        return None not in got and any(
            all(
                _same(rows_of(one, statement), rows, is_sorted="ORDER BY" in statement)
                for one, rows in zip(databases, got, strict=True)
            )
            for statement in statements
        )
    finally:
        for one in databases:
            one.close()


def make_database(tables: Tables, seed: int) -> sqlite3.Connection:
    """Numbers of a column differ from row to row, as far as its range goes, so that no order has ties."""
    draw = random.Random(seed)
    database = sqlite3.connect(":memory:")
    made: dict[str, list[object]] = {}
    for table, columns in tables.items():
        first = columns[0][1]
        rows = ROWS if ".." in first else len(first.split("|"))
        values: list[list[object]] = []
        for at, (column, form) in enumerate(columns):
            drawn = _drawn(form, rows, draw, made, unique=at == 0)
            values.append(drawn)
            made[f"{table}.{column}"] = drawn
        names = ", ".join(f'"{column}"' for column, _ in columns)
        database.execute(f'CREATE TABLE "{table}" ({names})')
        lines = list(zip(*values, strict=True))
        draw.shuffle(lines)
        database.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})', lines)
    return database


def _drawn(
    form: str, rows: int, draw: random.Random, made: dict[str, list[object]], *, unique: bool
) -> list[object]:
    if form.startswith(">"):
        known = made[form[1:]]
        return [draw.choice(known) for _ in range(rows)]
    if ".." in form:
        low, high = map(int, form.split(".."))
        pool = range(low, high + 1)
        return (
            list(draw.sample(pool, rows)) if len(pool) >= rows else [draw.choice(pool) for _ in range(rows)]
        )
    texts = form.split("|")
    if unique:
        return list(draw.sample(texts, rows))
    return [draw.choice(texts) for _ in range(rows)]


def rows_of(database: sqlite3.Connection, statement: str) -> list[tuple[str, ...]] | None:
    """What one SELECT gives; None where it cannot be executed, or takes too long."""
    if not statement.lstrip().upper().startswith(("SELECT", "WITH")):
        return None
    end = time.monotonic() + LIMIT_S
    database.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    try:
        return [tuple(map(repr, row)) for row in database.execute(statement).fetchmany(10_000)]
    except (sqlite3.Error, sqlite3.Warning):
        return None


def _same(
    expected: list[tuple[str, ...]] | None, got: list[tuple[str, ...]] | None, *, is_sorted: bool
) -> bool:
    assert expected is not None
    if got is None:
        return False
    known, rows = [sorted(row) for row in expected], [sorted(row) for row in got]
    return rows == known if is_sorted else sorted(rows) == sorted(known)
