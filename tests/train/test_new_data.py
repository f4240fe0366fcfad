"""Generators of SQL over tables and of requests with tools, variants, the check against the outside set."""

from __future__ import annotations

import sqlite3
from collections import Counter

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("recipes")


def test_every_statement_can_be_executed_and_none_is_near_to_the_outside_set() -> None:
    from data.near import outside_set
    from data.tables import Tables

    outside = outside_set()
    tables, random = Tables(outside), np.random.default_rng(3)
    kinds: Counter[str] = Counter()
    for _ in range(800):
        made, question, statement = tables.drawn(random)
        database = sqlite3.connect(":memory:")
        for one in made:
            columns = ", ".join(f'"{column.name}"' for column in one.columns)
            database.execute(f'CREATE TABLE "{one.name}" ({columns})')
        database.execute(statement)
        database.close()
        for word in ("WHERE", "GROUP BY", "ORDER BY", "JOIN", "COUNT", "DISTINCT", "LIMIT"):
            kinds[word] += word in statement
        assert question
    assert min(kinds.values()) > 20
    drawn = [tables.draw(random).messages[0]["content"].split("\n")[-1] for _ in range(200)]
    assert len(set(drawn)) > 190


def test_what_is_near_to_the_outside_set_is_found() -> None:
    from data.near import Outside, outside_set

    own = Outside(["Which books were written by Austen?", "hello"])
    assert own.is_near("which books were written by austen")
    assert own.is_near("Which books were written by Herbert Austen?")
    assert own.is_near("Hello!")
    assert not own.is_near("Which ships were built in Bremen?")
    assert not own.is_near("")
    found = outside_set()
    for text in (
        "How many books are there?",
        "list all files including hidden ones",
        "Book a flight for me.",
    ):
        assert found.is_near(text)


def test_requests_with_tools_call_ask_or_answer() -> None:
    from data.tool_asks import ToolAsks

    part, random, counts = ToolAsks(), np.random.default_rng(5), Counter[str]()
    for _ in range(300):
        drawn = part.draw(random)
        schemas = {one["function"]["name"]: one["function"]["parameters"] for one in drawn.tools}
        answer = drawn.messages[-1]
        calls = answer.get("tool_calls", [])
        counts["calls" if calls else "words"] += 1
        assert bool(calls) != bool(answer["content"])
        for call in calls:
            schema, given = schemas[call["function"]["name"]], call["function"]["arguments"]
            assert list(given) == schema["required"]
            assert all(str(value) in drawn.messages[0]["content"] for value in given.values())
    assert min(counts.values()) > 90


def test_variants_keep_the_answer() -> None:
    from data.near import Outside
    from data.tool_asks import ToolAsks
    from data.variants import Varied, noised
    from dialogue import ask

    class One:
        name = "one"

        def draw(self, _: object) -> object:
            return ask("list the ships", "SELECT * FROM ships")

    part, random = Varied(One(), [One(), ToolAsks()], Outside([])), np.random.default_rng(1)
    roles = Counter(tuple(m["role"] for m in part.draw(random).messages) for _ in range(300))
    assert {("user", "assistant"), ("system", "user", "assistant"), ("user", "assistant") * 2} <= set(roles)
    assert all(part.draw(random).messages[-1]["content"] == "SELECT * FROM ships" for _ in range(50))
    assert all(noised("Which ship is 12 meters?", random) for _ in range(50))
