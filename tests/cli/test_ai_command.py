"""`headrace sql` with functions that models answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

pytest.importorskip("duckdb", reason="needs headrace[data]")


def test_the_shipped_model_answers(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "mails.csv").write_text("id,body\n1,list all files\n2,list all files\n")
    (tmp_path / "headrace.toml").write_text('[datasets.mails]\nfrom = "file:mails.csv"\n')
    sql = "SELECT id, ai('Answer:', body, max_tokens := 1) AS a FROM mails ORDER BY id"
    done = inside("sql", "-c", sql, "--format", "json")
    assert done.code == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first["a"] == second["a"] != ""
    assert "loading the default model" in done.stderr
    assert "computed 1 of 1 different rows" in done.stderr
    assert "1 text ended at max_tokens" in done.stderr
    again = inside("sql", "-c", sql, "--format", "json")
    assert again.stdout == done.stdout
    assert "computed 0 of 1 different rows" in again.stderr
    refused = inside("sql", "-c", sql.replace("Answer", "Say"), "--max-tokens", "3")
    assert refused.code != 0
    assert "max_tokens allows 3" in refused.stderr
    assert "computed" not in refused.stderr
    explained = inside("sql", "--explain", "--node-usd-per-hour", "9000", "-c", sql.replace("Answer", "Say"))
    assert re.search(r"of output, up to [0-9.]+ s, \$[0-9.]*[1-9]", explained.stdout), explained.stdout
    explained = inside(
        "sql", "--explain", "-c", sql.replace("ai(", "ai_filter(").replace(", max_tokens := 1", "")
    )
    assert "time unknown until it has computed something" in explained.stdout


def test_a_table_shows_numbers_within_lists_as_numbers(inside: Callable[..., Outcome]) -> None:
    sql = "SELECT [1.5::DOUBLE] AS l, {'a': 1.50::DECIMAL(9, 2), 'b': NULL} AS s, 1.5::DECIMAL(9, 2) AS d"
    done = inside("sql", "-c", sql)
    assert done.stdout.splitlines()[-1].split() == ["[1.5]", '{"a":1.50,"b":null}', "1.50"]


def test_a_wrong_name_is_said_to_load_once(inside: Callable[..., Outcome]) -> None:
    done = inside("sql", "-c", "select ai('hello', model => 'gpt')")
    assert done.code == 1 and done.stderr.count("loading gpt") == 1 and "no model 'gpt'" in done.stderr
