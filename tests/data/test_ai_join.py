"""Joins by a criterion that a model judges: each different pair once, within a bound."""

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

PAIRS = "ai_join(body, topic, 'The text is about the topic.'{})"


@pytest.fixture
def data(engine: DataEngineMaker, tmp_path: Path) -> DataEngine:
    mails = [f"{n},list all files in folder {n % 9},{n % 3}" for n in range(60)]
    (tmp_path / "mails.csv").write_text("\n".join(["id,body,kind", *mails]))
    (tmp_path / "topics.csv").write_text("number,topic\n0,files\n1,the weather\n2,files and folders\n3,\n")
    return engine({name: f"file:{tmp_path}/{name}.csv" for name in ("mails", "topics")})


def run(
    data: DataEngine, models: LocalModels, sql: str, *, explain: bool = False, **wishes: Any
) -> SqlAnswer:
    data.memo.clear()
    return data.sql(
        sql, format="json", ruled=False, models=models, explain=explain, wishes=AiWishes(**wishes)
    )


def rows_of(answer: SqlAnswer) -> list[str]:
    return sorted(json.dumps(row) for row in json.loads(answer.body))


def computed(answer: SqlAnswer) -> tuple[int, int]:
    assert answer.usage is not None
    return answer.usage.computed, answer.usage.unplanned


@pytest.mark.parametrize(
    ("source", "pairs", "unplanned"),
    [
        ("mails JOIN topics ON {call}", 27, 0),
        ("mails, topics WHERE {call}", 27, 0),
        ("mails JOIN topics ON kind = number AND {call}", 27, 0),
        ("mails JOIN topics ON {call} AND id < 4 WHERE number <> 2", 8, 0),
        ("(mails JOIN topics ON {call}) JOIN topics t ON t.number = kind", 27, 0),
        ("mails LEFT JOIN topics ON kind = number AND {call}", 27, 1),
        ("mails JOIN topics ON {call} OR id = 3", 27, 1),
        ("topics t LEFT JOIN (mails JOIN topics ON {call}) ON t.number = kind", 27, 1),
        ("mails JOIN topics ON {call} AND ai_filter('Is it?', body)", 36, 0),
    ],
)
def test_every_different_pair_is_asked_once(
    data: DataEngine, models: LocalModels, source: str, pairs: int, unplanned: int
) -> None:
    source = source.format(call=PAIRS.format("").replace("topic,", "topics.topic,"))
    sql = f"SELECT id, topics.number FROM {source}"
    planned = run(data, models, sql)
    plain = run(data, models, sql, planned=False)
    assert rows_of(planned) == rows_of(plain)
    assert 0 < computed(planned)[0] <= pairs
    assert computed(planned)[1] == unplanned


def test_what_a_join_will_take(data: DataEngine, models: LocalModels) -> None:
    sql = f"SELECT id FROM mails JOIN topics ON {PAIRS.format('')} AND id < 4"
    [cost] = run(data, models, sql, explain=True).costs
    assert (cost.function, cost.rows, cost.requests, cost.exact) == ("ai_join", 12, 12, True)
    done = run(data, models, sql)
    assert done.usage is not None
    assert (done.usage.computed, done.usage.prompt_tokens) == (12, cost.prompt_tokens)


@pytest.mark.parametrize("explain", [False, True])
def test_too_many_pairs_are_refused_first(data: DataEngine, models: LocalModels, explain: bool) -> None:
    sql = f"SELECT count(*) FROM mails JOIN topics ON {PAIRS.format(', max_pairs := 26')}"
    with pytest.raises(SqlLimit, match=r"more than 26 different pairs .* raise max_pairs"):
        run(data, models, sql, explain=explain)
    data.sql(sql.replace("26", "27"), format="json", ruled=False, models=models)
    with pytest.raises(SqlLimit, match="max_ai_rows allows 20"):
        run(data, models, sql.replace("26", "27"), max_ai_rows=20)


def test_too_many_pairs_of_a_join_without_a_plan(data: DataEngine, models: LocalModels) -> None:
    sql = f"SELECT count(*) FROM mails LEFT JOIN topics ON {PAIRS.format(', max_pairs := 26')}"
    with pytest.raises(SqlLimit, match=r"more than 26 different pairs"):
        run(data, models, sql)


def test_a_cartesian_bomb_is_refused_at_once(data: DataEngine, models: LocalModels) -> None:
    sql = (
        "SELECT count(*) FROM range(1000000) a(x), range(1000000) b(y)"
        " WHERE ai_join(x::VARCHAR, y::VARCHAR, 'They are equal.')"
    )
    with pytest.raises(SqlLimit, match=r"more than 10,000 different pairs"):
        run(data, models, sql)


def test_pairs_that_are_not_near_are_false_and_cost_nothing(data: DataEngine, models: LocalModels) -> None:
    near = "similarity(body, topic) >= 0.25"
    sql = f"SELECT id, number FROM mails JOIN topics ON {PAIRS.format(', min_similarity := 0.25')}"
    found = run(data, models, sql)
    both = run(data, models, f"SELECT id, number FROM mails, topics WHERE {near} AND {PAIRS.format('')}")
    assert rows_of(found) == rows_of(both)
    every = run(data, models, f"SELECT id, number FROM mails, topics WHERE {near}")
    assert 0 < len(rows_of(every)) < 180  # some are near and some are not
    [cost] = run(data, models, sql, explain=True).costs
    assert not cost.prompt_exact
    assert found.usage is not None
    assert found.usage.prompt_tokens < cost.prompt_tokens


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("ai_join(body, topic)", "2 arguments|argument 3"),
        ("ai_join(body, topic, body)", "criterion, as a constant"),
        ("ai_join(body, topic, '')", "criterion is a text"),
        ("ai_join(body, topic, 'x', max_pairs := 0)", "max_pairs is 0"),
        ("ai_join(body, topic, 'x', embed_model := 'embed')", "no effect without min_similarity"),
        ("ai_join(body, topic, 'x', min_similarity := 2)", "min_similarity is 2"),
    ],
)
def test_what_means_nothing_is_refused(data: DataEngine, models: LocalModels, call: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        run(data, models, f"SELECT id FROM mails JOIN topics ON {call}")
