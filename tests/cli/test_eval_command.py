"""`headrace eval`: answers of the shipped model over rows, scored in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

pytest.importorskip("duckdb", reason="needs headrace[data]")

SETTINGS = """
[datasets]
asked = "file:asked.csv"

[evals.same]
rows = "SELECT text, topic AS expected, CASE WHEN n < 4 THEN topic ELSE upper(topic) END AS answer FROM asked"
at_least = { match = 0.7, exact = 0.9 }
[evals.same.scorers]
match = "match"
exact = "exact"
part = "includes"
near = "levenshtein"
short = "length(answer) < 6 -- of all"
empty = "CASE WHEN false THEN 1 END"
topics = "SELECT expected, count(*) AS n FROM result GROUP BY expected ORDER BY expected"

[evals.models]
rows = "SELECT topic AS expected, classify(text, ['food', 'work']) AS answer, text FROM asked"
scorers = { right = "match", judged = "ai_filter('Is this about food?', text) IS NOT NULL" }

[evals.without]
rows = "SELECT text FROM asked"
scorers = { x = "match" }

[evals.wrong]
rows = "SELECT text AS answer FROM asked"
scorers = { x = "nothing = 1" }
"""


@pytest.fixture
def run(inside: Callable[..., Outcome], tmp_path: Path) -> Callable[..., Outcome]:
    (tmp_path / "asked.csv").write_text(
        "n,text,topic\n1,I baked bread,food\n2,My boss called,work\n3,Soup is ready,food\n4,A new desk,work\n"
    )
    (tmp_path / "headrace.toml").write_text(SETTINGS)
    return inside


def test_scores_and_bounds(run: Callable[..., Outcome]) -> None:
    done = run("eval", "same", "--json")
    assert done.code == 1, done.stderr  # exact is below its bound
    report = json.loads(done.stdout)
    scores = {one["name"]: one for one in report["scores"]}
    assert report["rows"] == 4
    assert {name: scores[name]["mean"] for name in ("match", "exact", "part", "short")} == {
        "match": 1.0,
        "exact": 0.75,
        "part": 1.0,
        "short": 1.0,
    }
    assert scores["exact"]["half_width"] == pytest.approx(1.96 * 0.5 / 2)
    assert (scores["match"]["passed"], scores["exact"]["passed"]) == (True, False)
    assert scores["near"]["mean"] == pytest.approx(3 / 4)
    assert (scores["empty"]["rows"], scores["empty"]["mean"]) == (0, None)
    assert scores["topics"]["table"] == [{"expected": "food", "n": 2}, {"expected": "work", "n": 2}]
    shown = run("eval", "same")
    assert "match: 1.0000 ± 0.0000 of 4 rows, at least 0.7" in shown.stdout
    assert "exact: 0.7500 ± 0.4900 of 4 rows, below 0.9" in shown.stdout


def test_models_answer_and_judge_once(run: Callable[..., Outcome]) -> None:
    first = json.loads(run("eval", "models", "--json").stdout)
    again = json.loads(run("eval", "models", "--json").stdout)
    assert first["usage"]["computed"] == 4
    assert again["usage"]["computed"] == 0
    assert first["scores"] == again["scores"]
    assert [one["rows"] for one in first["scores"]] == [4, 4]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("without", "none is named answer"),
        ("wrong", "the scorer x: "),
        ("modles", "did you mean 'models'"),
    ],
)
def test_what_is_wrong_is_named(run: Callable[..., Outcome], name: str, words: str) -> None:
    done = run("eval", name)
    assert done.code != 0
    assert words in done.stderr


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("[evals]\na = 1", "evals.a is no table"),
        ('[evals.a]\nrows = "SELECT 1"', "needs rows, a SELECT, and scorers"),
        ('[evals.a]\nrows = "SELECT 1"\nscorers = { x = 1 }', "scorers.x is no expression"),
        ('[evals.a]\nrows = "SELECT 1"\nscorers = { x = "match" }\nat_least = { y = 1 }', "no scorer 'y'"),
        ('[evals.a]\nrow = "SELECT 1"', "did you mean 'rows'"),
    ],
)
def test_settings_that_are_none(
    inside: Callable[..., Outcome], tmp_path: Path, entry: str, words: str
) -> None:
    (tmp_path / "headrace.toml").write_text(entry)
    done = inside("eval", "a")
    assert done.code == 2
    assert words in done.stderr
