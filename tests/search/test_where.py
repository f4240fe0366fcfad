"""Conditions: what they mean, and that nothing but a condition gets through."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.search.where import read_filter, read_where, sql_of

ROWS: list[dict[str, Any]] = [
    {"n": 1, "price": 9.5, "region": "eu", "vip": True},
    {"n": 2, "price": 20, "region": "us", "vip": False},
    {"n": 3, "price": 30.25, "region": "it's", "odd name": 1},
    {"n": 4, "region": "30", "vip": True},
]


def matching(condition: Any) -> list[int]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a)")
    database.executemany("INSERT INTO t VALUES (?)", [(json.dumps(row),) for row in ROWS])
    text, values = sql_of(condition, "a")
    return [json.loads(a)["n"] for (a,) in database.execute(f"SELECT a FROM t WHERE {text}", values)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vip", [1, 4]),
        ("NOT vip", [2, 3]),
        ("vip = false", [2]),
        ("vip != true", [2, 3]),
        ("price < 20", [1]),
        ("price <= 20 AND region = 'us'", [2]),
        ("price >= 2e1", [2, 3]),
        ("price > 1000000", []),
        ("region = 'it''s' OR n = 1", [1, 3]),
        ("region = 30", []),
        ("region <> 'eu'", [2, 3, 4]),
        ("region IN ('eu', 'us', 30)", [1, 2]),
        ("region not in ('eu', 'us')", [3, 4]),
        ("n IN (1, 3.0, 'x', true)", [1, 3]),
        ("price IS NULL", [4]),
        ("price is not null and not (n = 1 or n = 2)", [3]),
        ('"odd name" = 1', [3]),
        ("vip AND n = 1 OR n = 2 AND NOT vip", [1, 2]),
    ],
)
def test_what_conditions_mean(text: str, expected: list[int]) -> None:
    assert matching(read_where(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "  ",
            "vip AND",
            "price <",
            "= 3",
            "price = vip",
            "a = 1; DROP TABLE t",
            "a = 1 -- x",
            "(vip",
            "vip)",
        ),
        *("a = 'x", "SELECT 1", "a = (SELECT 1)", "load_extension('x')", "a LIKE 'x'", "1 = 1", "a IN ()"),
        *(
            "a = \x00",
            "NOT " * 60 + "a",
            "(" * 60 + "a" + ")" * 60,
            " OR ".join(["a = 1"] * 201),
            "a" * 10_001,
        ),
        *("a IN (" + ", ".join("1" * 1001) + ")", '"" = 1', "a IS 1", "null", "and = 1", "a = 1 b = 2"),
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(InvalidRequest, match="where cannot be read"):
        sql_of(read_where(text), "a")


@pytest.mark.parametrize("name", ['a"b', "a\nb", "x" * 257, ""])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no name"):
        sql_of(read_filter({"type": "eq", "key": name, "value": 1}), "a")


@given(st.text(max_size=60) | st.text("ab'\" ()=<>,AND OR NOT IN 019.-", max_size=60))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        condition = read_where(text)
        matching(condition)
    except InvalidRequest:
        pass


def test_filters_of_openai() -> None:
    eu = {"type": "eq", "key": "region", "value": "eu"}
    dear = {"type": "gte", "key": "price", "value": 20}
    assert matching(read_filter({"type": "or", "filters": [eu, dear]})) == [1, 2, 3]
    assert matching(
        read_filter({"type": "and", "filters": [eu, {"type": "eq", "key": "vip", "value": True}]})
    ) == [1]
    assert matching(read_filter({"type": "in", "key": "n", "value": [1, 4, 9]})) == [1, 4]
    assert matching(read_filter({"type": "nin", "key": "n", "value": [1, 4, 9]})) == [2, 3]
    for huge in (10**30, -(10**400)):  # SQLite has no such numbers
        assert matching(read_filter({"type": "eq", "key": "n", "value": huge})) == []
        assert matching(read_filter({"type": "in", "key": "n", "value": [huge, 4]})) == [4]
    assert matching(read_where(f"n < {'9' * 5000}")) == matching(read_where("n < 1000"))
    deep: Any = eu
    for _ in range(60):
        deep = {"type": "and", "filters": [deep]}
    wide = {"type": "or", "filters": [eu] * 300}
    for wrong in (
        {},
        [],
        "x",
        {"type": "eq", "key": "a"},
        {"type": "in", "key": "a", "value": []},
        deep,
        wide,
        {"type": "like", "key": "a", "value": "x"},
        {"type": "and", "filters": []},
        {"type": "eq", "key": "a", "value": [1]},
        {"type": "eq", "key": 1, "value": 1},
    ):
        with pytest.raises(InvalidRequest, match="filters cannot be read"):
            read_filter(wrong)
