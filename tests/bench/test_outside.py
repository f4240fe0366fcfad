"""The outside set of the bundled models: its files are whole, its scorers tell right from wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

BUNDLED = Path(__file__).parents[2] / "bench" / "bundled"
sys.path.insert(0, str(BUNDLED))
import outside  # noqa: E402
from outside import shell, sql, texts, tools  # noqa: E402
from outside.case import Answer, Case  # noqa: E402


def sql_cases() -> list[Case]:
    return [*sql.cases("sql.txt", "sql"), *sql.cases("joins.txt", "joins")]


def test_the_set_is_whole_and_small() -> None:
    cases = [*sql_cases(), *shell.cases(), *tools.cases(), *texts.edits(), *texts.talk()]
    jobs = Counter(case.job.partition(",")[0] for case in cases)
    least = {"sql": 150, "joins": 60, "shell": 150, "tools": 140, "edits": 140}
    assert all(jobs[job] >= count for job, count in least.items())
    twice = [one for one, count in Counter((c.job, c.prompt) for c in cases).items() if count > 1]
    assert not twice
    assert sum(path.stat().st_size for path in BUNDLED.rglob("outside/*.txt")) < 300_000


def test_each_statement_that_is_wanted_is_right_and_no_constant_is() -> None:
    for case in sql_cases():
        assert case.is_right(Answer(case.wanted + ";")), case.prompt
        assert not case.is_right(Answer("SELECT 1")), case.prompt
        assert not case.is_right(Answer("SELECT NULL")), case.prompt


@pytest.mark.nightly
def test_statements_are_scored_by_their_rows() -> None:
    tables = {"cats": [("name", "Tom|Kit|Mia"), ("age", "1..20")]}
    right = ["SELECT name FROM cats WHERE age > 5"]
    assert sql.scored(tables, right, "SELECT c.name FROM cats AS c WHERE NOT c.age <= 5")
    assert sql.scored(tables, right, "```sql\nSELECT name FROM cats WHERE 5 < age\n```")
    assert not sql.scored(tables, right, "SELECT name FROM cats WHERE age > 6 OR 1 = 1")
    assert not sql.scored(tables, right, "DROP TABLE cats")
    assert not sql.scored(tables, right, "")
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n"
    assert not sql.scored(tables, right, endless)
    ordered = ["SELECT name FROM cats ORDER BY age"]
    assert not sql.scored(tables, ordered, "SELECT name FROM cats ORDER BY age DESC")


@pytest.mark.parametrize(
    ("variant", "text", "is_right"),
    [
        ("tar -x -f [-zv] a.tar", "tar xzf a.tar", True),
        ("tar -x -f [-zv] a.tar", "tar --extract --file=a.tar", True),
        ("tar -x -f [-zv] a.tar", "tar -xf b.tar", False),
        ("tar -x -f [-zv] a.tar", "tar -cf a.tar", False),
        ("head -n 20 log", "head -20 log", True),
        ("head -n 20 log", "head --lines=20 log", True),
        ("head -n 20 log", "head log", False),
        ("find _ -name *.py", "find . -name '*.py'", True),
        ("sort a | uniq -c", "sort a | uniq --count", True),
        ("sort a | uniq -c", "sort a", False),
        ("git commit -m fix", 'git commit -m "fix"', True),
        ("chmod <+x|755> a.sh", "sudo chmod 755 ./a.sh", True),
        ("rm -r [-f] build", "rm -rf / build", False),
        ("ls -a", "ls -a; rm -rf x", False),
        ("ls -a", 'ls "', False),
    ],
)
def test_commands_are_read_by_a_parser(variant: str, text: str, is_right: bool) -> None:
    assert shell.matches([variant], text) is is_right


def test_calls_are_scored_by_schema_and_values() -> None:
    cases = {case.prompt: case for case in tools.cases()}
    asked = cases["Convert 100 USD to EUR."]
    right = {"amount": 100, "from_currency": "USD", "to_currency": "EUR"}
    assert asked.is_right(Answer("", (("convert_currency", right),)))
    assert not asked.is_right(Answer("", (("convert_currency", {**right, "amount": "100"}),)))
    assert not asked.is_right(Answer("", (("convert_currency", {**right, "note": "x"}),)))
    assert not asked.is_right(Answer("", (("convert_currency", right),) * 2))
    both = cases["are 17 and 51 prime?"]
    assert both.is_right(Answer("", (("is_prime", {"number": 51}), ("is_prime", {"number": 17}))))
    nothing = cases["Who wrote Hamlet?"]
    assert nothing.is_right(Answer("I do not know."))
    assert not nothing.is_right(Answer(""))
    assert not nothing.is_right(Answer("", (("get_weather", {"location": "Hamlet"}),)))


def test_edits_and_remarks() -> None:
    edits = list(texts.edits())
    for case in edits:
        assert case.is_right(Answer(case.wanted))
        assert not case.is_right(Answer(case.prompt.partition("\n")[2])), case.prompt
    hello = next(case for case in texts.talk() if case.prompt == "hello")
    assert hello.is_right(Answer("Hello! What can I do for you?"))
    for text in ("", "ls -la", "hello hello hello hello hello hello", "SELECT a FROM hello."):
        assert not hello.is_right(Answer(text))


def test_a_report_has_intervals_by_job_and_system_message() -> None:
    module = outside_command()
    case = next(iter(texts.talk()))
    systems = module.system_messages()
    assert len(systems) == 10
    found = module.report([(case, None), (case, systems[3])], [Answer("Hello!"), Answer("")])
    assert json.loads(json.dumps(found)) == found
    assert found["jobs"]["small talk"]["alone"] == {
        "right": 1, "of": 1, "percent": 100.0, "interval": [20.7, 100.0],
    }  # fmt: skip
    assert found["systems"] == {"3": found["jobs"]["small talk"]["system"]}
    assert "| small talk | 100.0 % of 1" in module.table(found)


def outside_command():
    """The command, which has the name of its package."""
    spec = importlib.util.spec_from_file_location("outside_command", BUNDLED / "outside.py")
    assert spec is not None and spec.loader is not None and outside.__doc__
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
