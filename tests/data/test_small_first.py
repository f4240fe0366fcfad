"""A small model that answers where a certified threshold allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataEngineMaker

from headrace.data.engine import AiWishes, DataEngine
from headrace.data.job import SqlAnswer
from headrace.errors import InvalidRequest
from headrace.inference.local_models import LocalModels

pytest.importorskip("duckdb", reason="needs headrace[data]")

ROWS = 400
CASCADE = "ai_filter('Is it about files?', body, model := 'mini'{})"
OPTIONS = ", small := 'nano', accuracy := 0.8"
SAMPLE = 56  # four times what 0.8 takes without an error


@pytest.fixture
def data(engine: DataEngineMaker, tmp_path: Path) -> DataEngine:
    words = ("list all files in folder", "remind me to water", "the weather in town", "delete every file of")
    mails = [f"{n},{words[n % 4]} {n}" for n in range(ROWS)]
    (tmp_path / "mails.csv").write_text("\n".join(["id,body", *mails]))
    return engine({"mails": f"file:{tmp_path}/mails.csv"})


def run(
    data: DataEngine, models: LocalModels, sql: str, *, explain: bool = False, **wishes: Any
) -> SqlAnswer:
    return data.sql(
        sql, format="json", ruled=False, models=models, explain=explain, wishes=AiWishes(**wishes)
    )


def values(answer: SqlAnswer) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in json.loads(answer.body)}


@pytest.mark.parametrize(
    "call",
    [
        CASCADE,
        "classify(body, ['files', 'plants', 'weather'], model := 'mini'{})",
    ],
)
def test_each_row_has_the_answer_of_one_of_the_models(
    data: DataEngine, models: LocalModels, call: str
) -> None:
    sql = f"SELECT id, {call} AS v FROM mails"
    found = run(data, models, sql.format(OPTIONS))
    large = values(run(data, models, sql.format("")))
    small = values(run(data, models, sql.format("").replace("mini", "nano")))
    cascaded = values(found)
    assert all(value in (large[row], small[row]) for row, value in cascaded.items())
    [said] = [one for one in found.warnings if "answered" in one]
    numbers = [int(one) for one in said.replace(",", "").split() if one.isdigit()][:4]
    taken, _, asked, sample = numbers
    assert (taken + asked, sample) == (ROWS, SAMPLE)
    differ = sum(cascaded[row] != large[row] for row in large)
    assert differ <= taken
    if taken:
        assert differ <= 0.35 * taken  # 0.2 holds with 95 % confidence
    again = run(data, models, sql.format(OPTIONS))
    assert again.usage is not None
    assert again.usage.computed == 0
    assert values(again) == cascaded


def test_few_rows_are_all_answered_by_the_large_model(data: DataEngine, models: LocalModels) -> None:
    sql = f"SELECT id, {CASCADE} AS v FROM mails WHERE id < 100"
    found = run(data, models, sql.format(OPTIONS))
    assert values(found) == values(run(data, models, sql.format("")))
    assert any("100 rows are too few for 56 that both answer" in one for one in found.warnings)


def test_what_it_will_take_is_a_bound(data: DataEngine, models: LocalModels) -> None:
    sql = f"SELECT id, {CASCADE.format(OPTIONS)} AS v FROM mails"
    [cost] = run(data, models, sql, explain=True).costs
    assert (cost.rows, cost.requests, cost.prompt_exact) == (ROWS, 2 * ROWS, False)
    done = run(data, models, sql)
    assert done.usage is not None
    assert 0 < done.usage.prompt_tokens <= cost.prompt_tokens


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (CASCADE.format(", accuracy := 0.9"), "needs a small model"),
        (CASCADE.format(", small := 'nano'"), "small needs accuracy"),
        (CASCADE.format(", small := 'mini', accuracy := 0.9"), "both the small and the large"),
        (CASCADE.format(", small := 'nano', accuracy := 1"), "accuracy is 1"),
        (CASCADE.format(OPTIONS).replace("ai_filter", "ai_probability"), "no option"),
        ("classify(body, ['a', 'b'], model := 'embed'" + OPTIONS + ")", "no decoder"),
    ],
)
def test_what_means_nothing_is_refused(data: DataEngine, models: LocalModels, call: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        run(data, models, f"SELECT {call} FROM mails")


def test_a_model_that_was_named_is_no_default(data: DataEngine, models: LocalModels) -> None:
    sql = "SELECT ai('Say:', 'a word', max_tokens := 4{}) AS v"
    run(data, models, sql.format(", model := 'nano'"))
    plain, named = (run(data, models, sql.format(more)) for more in ("", ", model := 'mini'"))
    assert plain.body == named.body
