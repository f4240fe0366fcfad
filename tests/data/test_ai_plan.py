"""The plan of a statement changes what it takes, and no byte of its answer."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataEngineMaker
from random_statements import random_statements

from headrace.data.engine import AiWishes, DataEngine, SqlLimit
from headrace.data.job import CallCost, SqlAnswer
from headrace.errors import InvalidRequest
from headrace.inference.local_models import LocalModels

pytest.importorskip("duckdb", reason="needs headrace[data]")

WANTED = int(os.environ.get("HEADRACE_AI_STATEMENTS", "12"))
SEED = int(os.environ.get("HEADRACE_AI_SEED", "1"))
ROWS, KINDS = 40, 9


@pytest.fixture
def data(engine: DataEngineMaker, tmp_path: Path) -> DataEngine:
    mails = [f"{n},list all files in folder {n % KINDS},{n % 4}" for n in range(ROWS)]
    (tmp_path / "mails.csv").write_text("\n".join(["id,body,person", *mails]))
    (tmp_path / "people.csv").write_text("number,name\n1,Ann\n2,Bob\n3,Cid\n")
    many = [f"{n},message number {n}" for n in range(300)]
    (tmp_path / "many.csv").write_text("\n".join(["id,body", *many]))
    return engine({name: f"file:{tmp_path}/{name}.csv" for name in ("mails", "people", "many")})


def run(data: DataEngine, models: LocalModels, sql: str, **wishes: Any) -> SqlAnswer:
    data.memo.clear()
    return data.sql(sql, format="json", ruled=False, models=models, wishes=AiWishes(**wishes))


def computed(answer: SqlAnswer) -> int:
    return 0 if answer.usage is None else answer.usage.computed


def rows_of(answer: SqlAnswer, sql: str) -> str:
    """The rows as they are where the statement has an order, else sorted."""
    if "ORDER BY id" in sql.partition("LIMIT")[0].rpartition("FROM")[2]:
        return answer.body.decode()
    return json.dumps(sorted(json.dumps(row) for row in json.loads(answer.body)))


def test_random_statements_give_the_same_bytes_planned_and_not(data: DataEngine, models: LocalModels) -> None:
    """HEADRACE_AI_STATEMENTS makes them more, HEADRACE_AI_SEED others."""
    saved: Counter[str] = Counter()
    for sql in random_statements(WANTED, SEED):
        plain = run(data, models, sql, planned=False)
        planned = run(data, models, sql)
        assert rows_of(planned, sql) == rows_of(plain, sql), sql
        saved["planned"] += computed(planned)
        saved["plain"] += computed(plain)
    print(dict(saved))
    assert 0 < saved["planned"] <= 1.2 * saved["plain"]  # the order of conditions is not always DuckDB's


@pytest.mark.parametrize(
    ("sql", "most"),
    [
        ("SELECT id FROM many WHERE ai_filter('Is this number even?', body) LIMIT 5", 64),
        ("SELECT id FROM many WHERE NOT ai_filter('Is this number even?', body) LIMIT 5", 300),
        ("SELECT id FROM many WHERE id > 99 AND ai_filter('Is it?', body) LIMIT 3 OFFSET 4", 64),
        ("SELECT ai(body, max_tokens := 1) FROM many ORDER BY id DESC LIMIT 1", 300),
    ],
)
def test_a_limit_reads_in_waves(data: DataEngine, models: LocalModels, sql: str, most: int) -> None:
    planned = run(data, models, sql)
    assert computed(planned) <= most
    assert planned.body == run(data, models, sql, planned=False).body


@pytest.mark.parametrize(
    "columns",
    [
        "id, count(*) OVER () AS n",
        "id, (SELECT count(*) FROM many WHERE ai_filter('Is it?', body)) AS n",
        "id, unnest([1, 2]) AS n",
        "DISTINCT id % 3 AS n",
        "count(*) AS n",
    ],
)
def test_rows_behind_a_limit_count_where_they_are_seen(
    data: DataEngine, models: LocalModels, columns: str
) -> None:
    sql = f"SELECT {columns} FROM many WHERE id < 60 AND ai_filter('Is it?', body) LIMIT 3"
    planned, plain = (run(data, models, sql, planned=one) for one in (True, False))
    assert rows_of(planned, sql) == rows_of(plain, sql)


def test_a_condition_that_hardly_passes(data: DataEngine, models: LocalModels) -> None:
    """Where waves find too few rows, all are read."""
    sql = "SELECT id FROM mails WHERE ai_filter('Is it?', body) AND id < 12 LIMIT 30"
    assert run(data, models, sql).body == run(data, models, sql, planned=False).body


def costs(data: DataEngine, models: LocalModels, sql: str, **wishes: Any) -> list[CallCost]:
    answer = data.sql(sql, format="json", ruled=False, models=models, explain=True, wishes=AiWishes(**wishes))
    assert computed(answer) == 0
    return list(answer.costs)


def test_costs_are_exact_before_anything_runs(data: DataEngine, models: LocalModels) -> None:
    sql = "SELECT id, ai('Say:', body, max_tokens := 5) FROM mails WHERE id < 5"
    data.memo.clear()
    [cost] = costs(data, models, sql)
    assert (cost.function, cost.rows, cost.known, cost.exact, cost.max_output_tokens) == (
        "ai",
        5,
        0,
        True,
        25,
    )
    assert cost.usd is None
    done = run(data, models, sql)
    assert done.usage is not None
    assert done.usage.prompt_tokens == cost.prompt_tokens
    assert done.usage.output_tokens <= cost.max_output_tokens
    [again] = costs(data, models, sql, usd_per_hour=1.0)
    assert (again.rows, again.known, again.prompt_tokens) == (5, 5, 0)
    [more] = costs(data, models, sql.replace("< 5", "< 9"), usd_per_hour=1.0)
    assert (more.rows, more.known) == (9, 5)
    assert more.seconds is not None
    assert more.usd == pytest.approx(more.seconds / 3600)


def test_a_process_that_begins_later_predicts_seconds(
    engine: DataEngineMaker, data: DataEngine, models: LocalModels, tmp_path: Path
) -> None:
    """As each `headrace sql --explain` is one."""
    sql = "SELECT ai('Say:', body, max_tokens := 3) FROM mails WHERE id < 2"
    run(data, models, sql)
    more = sql.replace("< 2", "< 6")
    [here] = costs(data, models, more)
    later = engine({"mails": f"file:{tmp_path}/mails.csv"})
    [there] = costs(later, models, more, usd_per_hour=1.0)
    assert (there.rows, there.known) == (here.rows, here.known) == (6, 2)
    assert there.seconds is not None
    assert there.seconds == pytest.approx(here.seconds)
    assert there.usd == pytest.approx(there.seconds / 3600)
    later.memo.clear()
    [forgotten] = costs(engine({"mails": f"file:{tmp_path}/mails.csv"}), models, more)
    assert forgotten.seconds is None


@pytest.mark.parametrize(
    "call",
    [
        "ai_filter('Is it?', body)",
        "classify(body, ['a file', 'a complaint about the weather', 'a'], model := 'mini')",
        "ai('Say:', body, temperature := 0.5, seed := 1, max_tokens := 2)",
    ],
)
def test_tokens_of_prompts_are_exact(data: DataEngine, models: LocalModels, call: str) -> None:
    sql = f"SELECT {call} FROM mails"
    data.memo.clear()
    [cost] = costs(data, models, sql)
    done = run(data, models, sql)
    assert done.usage is not None
    assert done.usage.prompt_tokens == cost.prompt_tokens


def test_costs_that_are_bounds_say_why(data: DataEngine, models: LocalModels) -> None:
    sql = "SELECT ai('Say:', body, max_tokens := 5) FROM mails WHERE ai_filter('Is it?', body)"
    by_function = {cost.function: cost for cost in costs(data, models, sql)}
    assert by_function["ai_filter"].exact
    assert by_function["ai_filter"].rows == KINDS
    assert not by_function["ai"].exact
    assert by_function["ai"].rows == KINDS
    [unknown] = costs(data, models, "SELECT CASE WHEN id = 3 THEN ai(body) END FROM mails")
    assert unknown.rows is None
    assert "condition" in unknown.reason


def test_money_refuses_first(data: DataEngine, models: LocalModels) -> None:
    sql = "SELECT ai('Say:', body, max_tokens := 5) FROM mails"
    with pytest.raises(InvalidRequest, match="node_usd_per_hour"):
        run(data, models, sql, max_cost=1.0)
    with pytest.raises(InvalidRequest, match="node_usd_per_hour"):  # the default of the setting
        run(data, models, sql, max_cost=1.0, usd_per_hour=0.0)
    run(data, models, sql)  # from now on its speed is known
    with pytest.raises(SqlLimit, match="predicted to cost up to"):
        run(data, models, sql.replace("Say", "Tell"), max_cost=1e-9, usd_per_hour=1.0)
    assert computed(run(data, models, sql, max_cost=100.0, usd_per_hour=1.0)) == KINDS


def test_what_a_text_says_as_a_struct(data: DataEngine, models: LocalModels) -> None:
    schema = "{'folder': 'integer', 'what': 'string'}"
    found = run(data, models, f"SELECT ai_extract(body, {schema}) AS e, typeof(e) t FROM mails WHERE id < 2")
    assert not any("additionalProperties" in warning for warning in found.warnings)
    rows = json.loads(found.body)
    assert rows[0]["t"] == "STRUCT(folder BIGINT, what VARCHAR)"
    assert all(isinstance(row["e"]["folder"], int) for row in rows)
    given = json.dumps(
        {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}}
    )
    [row] = json.loads(run(data, models, f"SELECT typeof(ai_extract('a, b', '{given}')) AS t").body)
    assert row["t"] == "STRUCT(tags VARCHAR[])"
    for bad in ("{}", "[]", "'x'", "{'a': 'nosuch'}", '\'{"properties": {"a": {}}}\''):
        with pytest.raises(InvalidRequest):
            run(data, models, f"SELECT ai_extract(body, {bad}) FROM mails")


def test_personal_data_and_ranks(data: DataEngine, models: LocalModels) -> None:
    [row] = json.loads(run(data, models, "SELECT redact('write to joe@example.com') AS r").body)
    assert row["r"] == "write to <EMAIL_ADDRESS_1>"
    ranked = run(
        data, models, "SELECT id FROM mails WHERE id < 9 ORDER BY rerank('folder 7', body) DESC, id LIMIT 1"
    )
    assert json.loads(ranked.body) == [{"id": 7}]
    assert any("embedder" in warning for warning in ranked.warnings)


@pytest.mark.parametrize(
    "value", ["coalesce(NULLIF(body, body), redact(body))", "CASE WHEN id >= 0 THEN redact(body) END"]
)
def test_texts_outlive_the_chunk_that_they_came_with(
    data: DataEngine, models: LocalModels, value: str
) -> None:
    """DuckDB's COALESCE keeps pointers into results of functions that it has released."""
    joined = "many LEFT JOIN people ON many.id % 4 = people.number"
    for _ in range(5):
        found = run(data, models, f"SELECT body, {value} AS a, name FROM {joined}")
        rows = json.loads(found.body)
        assert len(rows) == 300
        assert all(row["a"] == row["body"] for row in rows)
