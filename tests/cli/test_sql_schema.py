"""`--sql-schema`: a text, a file of lines, a file of CREATE TABLE statements, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

from headrace.cli.sql_schema import tables_of
from headrace.errors import UsageError


def test_three_forms(tmp_path: Path) -> None:
    wanted = {"players": ["name", "home city"], "teams": ["name"]}
    assert tables_of("players (name, home city); teams(name)") == wanted
    file = tmp_path / "tables"
    file.write_text("players(name, home city)\nteams(name)\n")
    assert tables_of(str(file)) == wanted
    file.write_text(
        'CREATE TABLE players (name TEXT NOT NULL, "home city" TEXT);\n-- all\ncreate table teams (name)'
    )
    assert tables_of(str(file)) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no-such-file", "cannot be read"),
        ("players(name", "is no table"),
        ("players()", "is empty"),
        ("players(a, A)", "is there twice"),
        ("create table x (a); attach 'y' as z", "SQLite cannot read the tables (not authorized)"),
        ("create table x (a", "SQLite cannot read the tables (incomplete input)"),
    ],
)
def test_what_is_refused(given: str, message: str) -> None:
    with pytest.raises(UsageError) as failure:
        tables_of(given)
    assert message in failure.value.message and failure.value.message.startswith("--sql-schema")


def test_the_answer_is_sql_of_the_table(inside: Callable[..., Outcome]) -> None:
    question = "Table players (name, team, home city)\nHow is the weather?"
    answer = inside("run", question, "--sql-schema", "players(name, team, home city)", "--temperature", "0")
    assert answer.stdout.startswith("SELECT ") and " FROM players" in answer.stdout
