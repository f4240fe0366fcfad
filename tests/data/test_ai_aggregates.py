"""Aggregates that models answer: the tree, its order, what is kept, limits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataEngineMaker

from headrace.data.engine import AiWishes, DataEngine, SqlLimit
from headrace.data.job import SqlAnswer
from headrace.errors import InvalidRequest
from headrace.inference.local_models import LocalModels

pytest.importorskip("duckdb", reason="needs headrace[data]")

ROWS = 400
TEXT = "please list all of the files in folder {} and send me the names and sizes of the largest among them"
ALL = "SELECT ai_agg(body, 'What do these ask for?', max_tokens := 12) AS a FROM mails"


class Asking:
    """An engine over mails, and the same mails in another order."""

    def __init__(self, engine: DataEngine, models: LocalModels) -> None:
        self.engine, self.models = engine, models

    def __call__(self, sql: str, *, explain: bool = False, **wishes: Any) -> SqlAnswer:
        return self.engine.sql(
            sql,
            format="json",
            ruled=False,
            explain=explain,
            models=self.models,
            wishes=AiWishes(**wishes),
        )

    def rows(self, sql: str, **wishes: Any) -> list[dict[str, Any]]:
        return json.loads(self(sql, **wishes).body)


@pytest.fixture
def ask(engine: DataEngineMaker, models: LocalModels, tmp_path: Path) -> Asking:
    mails = [f"{n},{TEXT.format(n % 51)},{n % 4}" for n in range(ROWS)]
    for name, rows in (("mails", mails), ("turned", mails[::-1])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,body,person", *rows]))
    return Asking(engine({name: f"file:{tmp_path}/{name}.csv" for name in ("mails", "turned")}), models)


def test_groups_are_folded_within_what_was_told_before(ask: Asking) -> None:
    sql = "SELECT person, ai_agg(body, 'What do these ask for?', max_tokens := 12) AS a FROM mails GROUP BY "
    costs = [ask(sql + keys, explain=True).costs for keys in ("1", "person", "ALL")]
    assert costs[0] == costs[1] == costs[2]
    [cost] = costs[0]
    assert (cost.rows, cost.exact, cost.prompt_exact) == (4, True, False)
    assert cost.requests > 8  # several leaves of each group, and what makes them one
    done = ask(f"{sql}ALL ORDER BY person")
    assert done.usage is not None
    assert (done.usage.computed, done.usage.unplanned) == (4, 0)
    assert 0 < done.usage.prompt_tokens <= cost.prompt_tokens
    assert 0 < done.usage.output_tokens <= cost.max_output_tokens == 12 * cost.requests
    again = ask(f"{sql}1 ORDER BY 1")
    assert again.usage is not None
    assert (again.usage.computed, again.usage.prompt_tokens) == (0, 0)
    assert again.body == done.body


def test_a_group_that_fits_is_one_request_with_exact_tokens(ask: Asking) -> None:
    sql = ALL.replace("FROM mails", "FROM mails WHERE id < 5")
    [cost] = ask(sql, explain=True).costs
    assert (cost.requests, cost.prompt_exact) == (1, True)
    done = ask(sql)
    assert done.usage is not None
    assert done.usage.prompt_tokens == cost.prompt_tokens
    texts = "\n\n".join(sorted(map(TEXT.format, range(5))))
    [row] = ask.rows(f"SELECT ai('What do these ask for?', '{texts}', max_tokens := 12) AS a")
    assert [row] == json.loads(done.body)


def test_the_order_of_rows_changes_nothing_and_order_by_does(ask: Asking) -> None:
    found = ask(ALL)
    other = ask(ALL.replace("FROM mails", "FROM turned"))
    assert other.usage is not None
    assert other.usage.computed == 0  # the same list of texts
    assert other.body == found.body
    by_id = ask(ALL.replace("max_tokens := 12", "max_tokens := 12 ORDER BY id"))
    by_ties = ask(ALL.replace("max_tokens := 12", "max_tokens := 12 ORDER BY person"))
    for answer, computed in ((by_id, 1), (by_ties, 1)):
        assert answer.usage is not None
        assert answer.usage.computed == computed
    turned = ask(
        ALL.replace("max_tokens := 12", "max_tokens := 12 ORDER BY person").replace("mails", "turned")
    )
    assert turned.usage is not None
    assert turned.usage.computed == 0


def test_filter_distinct_nothing_and_null(ask: Asking) -> None:
    [row] = ask.rows(
        "SELECT ai_agg(body, 'What?', max_tokens := 4) FILTER (WHERE id < 3) AS a,"
        " ai_summarize_agg(DISTINCT body, max_tokens := 4) FILTER (WHERE id IN (1, 52)) AS b,"
        " ai_summarize(body, max_tokens := 4) FILTER (WHERE id = 1) AS c,"
        ' "summarize"(NULL) AS d, ai_summarize(body) FILTER (WHERE id < 0) AS e FROM mails'
    )
    assert row["a"]
    assert row["b"] == row["c"] != ""
    assert (row["d"], row["e"]) == (None, None)


def test_texts_that_models_answer_are_folded(ask: Asking) -> None:
    inner = "ai('Say:', body, max_tokens := 1)"
    sql = f"SELECT ai_agg({inner}, 'What?', max_tokens := 2) AS a FROM mails WHERE id < 4"
    texts = [row["t"] for row in ask.rows(f"SELECT {inner} AS t FROM mails WHERE id < 4")]
    joined = "\n\n".join(sorted(texts)).replace("'", "''")
    assert ask.rows(sql) == ask.rows(f"SELECT ai('What?', '{joined}', max_tokens := 2) AS a")


def test_what_was_answered_of_a_group_stays_after_an_end(ask: Asking) -> None:
    """The parts are kept: another instance computes what is missing only."""
    first = ask(ALL)
    assert first.usage is not None
    kept = ask.engine.memo
    longer = ask(ALL.replace("FROM mails", "FROM mails WHERE id <> 399"))  # the last of its text has a twin
    assert longer.usage is not None
    assert longer.usage.computed == 1
    assert longer.usage.prompt_tokens < first.usage.prompt_tokens
    kept.clear()
    assert ask(ALL).body == first.body


def test_limits_refuse_before_anything_is_computed(ask: Asking) -> None:
    with pytest.raises(SqlLimit, match=r"1 different rows to compute in \d+ requests.*max_ai_rows allows 2"):
        ask(ALL, max_ai_rows=2)
    with pytest.raises(SqlLimit, match=r"up to [\d,]+ prompt tokens.*max_tokens allows 900"):
        ask(ALL, max_tokens=900)
    done = ask(ALL)
    assert done.usage is not None
    assert done.usage.computed == 1


def test_long_texts_are_cut_and_too_long_groups_refused(ask: Asking) -> None:
    long = "repeat('many different words stand here, and they go on. ', {})"
    [cost] = ask(
        f"SELECT ai_summarize({long.format(100)}, max_tokens := 8) FROM mails WHERE id = 0", explain=True
    ).costs
    assert cost.requests > 2
    [row] = ask.rows(f"SELECT ai_summarize({long.format(100)}, max_tokens := 8) AS a")
    assert row["a"]
    [cost] = ask("SELECT ai_summarize(repeat('xyz', 9000)) FROM mails WHERE id = 0", explain=True).costs
    assert cost.requests > 2
    with pytest.raises(SqlLimit, match=r"characters in one row or group, at most 8,388,608"):
        ask(f"SELECT ai_summarize({long.format(200_000)}) FROM mails WHERE id = 0", explain=True)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT ai_agg(body) FROM mails", "argument 2 is an instruction"),
        ("SELECT ai_agg(body, body) FROM mails", "instruction, as a constant"),
        ("SELECT ai_agg(body, ' ') FROM mails", "instruction is a text"),
        ("SELECT ai_agg() FROM mails", "aggregate of a text"),
        ("SELECT ai_agg(body, 'x') OVER () FROM mails", "no OVER"),
        ("SELECT ai_agg(body, 'x', 'y') FROM mails", "2 arguments"),
        ("SELECT ai_agg(body, 'x', max_tokens := 2000) FROM mails", "do not fit the .* lower it to"),
        ("SELECT ai_agg(body, 'x', temperature := 1) FROM mails", "no option"),
        ("SELECT ai_summarize(read_text('/etc/hostname')) FROM mails", "read_text"),
        ("SELECT body, ai_summarize(body) FROM mails", "GROUP BY"),
    ],
)
def test_what_means_nothing_is_refused(ask: Asking, sql: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ask(sql)


def test_an_aggregate_is_no_constant(ask: Asking) -> None:
    """Of an argument that names no column."""
    [row] = ask.rows("SELECT similarity(count(*)::VARCHAR, '400') AS same FROM mails")
    assert row["same"] == pytest.approx(1)
    [row] = ask.rows("SELECT ai_summarize('x', max_tokens := 2) AS a FROM mails WHERE id < 0")
    assert row["a"] is None
