"""SQL of tables: whatever a model writes, SQLite prepares it; names that cannot be are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing

import pytest
from test_grammar import admits

from headrace import LLM
from headrace.grammar.constraint import GrammarError
from headrace.grammar.sql import sql_constraint

PLAIN = {"players": ["name", "team", "home city", "points"]}
HOSTILE = {
    'a"b': ["select", "x.y", 'we"ird', "'", "count", "Größe", "日本", "a;--"],
    "order": ["name", "Name2", "select", "players", "1st", "\\", "true", "rowid"],
    "players": ["name", "team", "*", " x "],
}
MANY = {f"t{table}": [f"column {at}" for at in range(200)] for table in range(10)}


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def database(tables: Mapping[str, Sequence[str]]) -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    for table, columns in tables.items():
        made.execute(f"CREATE TABLE {_name(table)} ({', '.join(map(_name, columns))})")
    return made


@pytest.mark.parametrize("tables", [PLAIN, HOSTILE, MANY], ids=["plain", "hostile", "many"])
def test_whatever_is_drawn_prepares(tables: Mapping[str, Sequence[str]]) -> None:
    with LLM("mini") as llm, closing(database(tables)) as made:
        prepared = 0
        for seed in range(34):
            drawn = llm.generate(f"SQL {seed}:", sql=tables, temperature=1.5, seed=seed, max_tokens=300)
            if drawn.finish_reason == "stop":
                made.execute("EXPLAIN " + drawn.text)
                prepared += 1
        assert prepared >= 10


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT \"home city\" FROM players WHERE team = 'Lions'",
        "SELECT DISTINCT team, COUNT(*), MAX(points) FROM players",
        "SELECT name FROM players WHERE name LIKE 'A%' OR (points BETWEEN 1 AND 2 AND team IS NOT NULL);",
        "SELECT team FROM players WHERE team NOT IN ('x''y', 'z') GROUP BY team HAVING COUNT(*) > 2"
        " ORDER BY AVG(points) DESC LIMIT 3",
        "SELECT name\nFROM players\nWHERE points > -1.5\nORDER BY points DESC, name\nLIMIT 5 OFFSET 5",
        "SELECT players.name, teams.city FROM players JOIN teams ON players.team = teams.name"
        " WHERE teams.city = 'Rome'",
    ],
)
def test_everyday_statements_are_of_the_grammar(statement: str) -> None:
    tables = {**PLAIN, "teams": ["name", "city"]}
    assert admits(sql_constraint(tables), statement)
    with closing(database(tables)) as made:
        made.execute("EXPLAIN " + statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT city FROM players",  # of the other table
        "SELECT name FROM players ORDER BY COUNT(*)",
        "SELECT name FROM players; DROP TABLE players",
        "SELECT name FROM players HAVING COUNT(*) > 1",
        "DELETE FROM players",
    ],
)
def test_others_are_not(statement: str) -> None:
    tables = {**PLAIN, "teams": ["name", "city"]}
    assert not admits(sql_constraint(tables), statement)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "has no tables"),
        ("players(name)", "has no tables"),
        ({"t": []}, "the table 't' has no list of columns"),
        ({"t": "name"}, "the table 't' has no list of columns"),
        ({"t": ["a", 1]}, "in the table 't' the column '1…' is empty, or no text"),
        ({"t": ["a", "A"]}, "the column 'A' is there twice"),
        ({"t": ["a\n"]}, "has a control character"),
        ({"t": ["\ud800"]}, "half of a surrogate pair"),
        ({"t": ["x" * 129]}, "has 129 characters, at most 128 are allowed"),
        ({"t": [f"c{at}" for at in range(10_000)]}, "has 10,000 columns, at most 2,000 are allowed"),
        ({f"t{at}": ["c"] for at in range(33)}, "has 33 tables, at most 32 may be"),
    ],
)
def test_what_is_refused(tables: object, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as failure:
        sql_constraint(tables, param="sql")
    assert failure.value.param == "sql" and len(failure.value.message) < 200


@pytest.mark.parametrize("asked", [{"grammar": "sql"}, {"grammar": " SQL\n"}])
def test_sql_by_name_is_told_where_the_tables_go(asked: dict[str, str]) -> None:
    with LLM("mini") as llm:
        with pytest.raises(GrammarError, match=r"for SQL give the tables instead, as sql=\{TABLE"):
            llm.generate("x", max_tokens=4, **asked)  # type: ignore[arg-type]
        assert llm.generate("x", regex="sql", max_tokens=9).text == "sql"
