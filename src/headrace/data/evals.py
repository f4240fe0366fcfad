"""Evaluations: the rows of a statement that models have answered, and scores of them in SQL."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from msgspec import Struct

from headrace.config.evals import EvalSettings
from headrace.data.engine import AiWishes, DataEngine
from headrace.data.job import AiUsage, SqlAnswer
from headrace.data.model_work import Models
from headrace.errors import InvalidRequest, UsageError

RESULT = "result"
ANSWER, EXPECTED = "answer", "expected"
SCORERS: Mapping[str, str] = {
    "match": "lower(trim(answer::VARCHAR)) = lower(trim(expected::VARCHAR))",
    "exact": "answer::VARCHAR = expected::VARCHAR",
    "includes": "contains(lower(answer::VARCHAR), lower(expected::VARCHAR))",
    "json_match": "TRY_CAST(answer AS JSON)::VARCHAR = TRY_CAST(expected AS JSON)::VARCHAR",
    "levenshtein": "1 - levenshtein(answer::VARCHAR, expected::VARCHAR)"
    " / greatest(length(answer::VARCHAR), length(expected::VARCHAR), 1)",
}
"""Those that are known by name; they compare the columns `answer` and `expected`."""
CONFIDENCE = 1.96


class EvalScore(Struct, frozen=True, kw_only=True):
    """Of one scorer. Of an expression the `mean` over `rows` that have a value and half the width of its 95 %
    interval; a SELECT has its rows in `table`. `passed` is None without a bound."""

    name: str
    rows: int
    mean: float | None = None
    half_width: float | None = None
    at_least: float | None = None
    passed: bool | None = None
    table: tuple[Mapping[str, object], ...] = ()


class EvalReport(Struct, frozen=True):
    """Of an evaluation: rows, scores, what models have done for it, and what is to be known of that."""

    rows: int
    scores: tuple[EvalScore, ...]
    usage: AiUsage | None
    warnings: tuple[str, ...]


def evaluate(
    engine: DataEngine, models: Models, settings: EvalSettings, wishes: AiWishes, cache: Path
) -> EvalReport:
    """Run the rows' statement once, then the scorers over what came. Raises what statements raise, and
    UsageError where there is no column `answer`."""
    made = engine.sql(settings.rows, ruled=False, models=models, wishes=wishes)
    names = [column.name for column in made.columns]
    if ANSWER not in names:
        raise UsageError(
            f"rows has the columns {', '.join(names)[:300]}, and none is named {ANSWER}: write … AS {ANSWER}"
        )
    with TemporaryDirectory(prefix="headrace-eval-") as folder:
        file = Path(folder) / "result.arrow"
        _write(made, file)
        scoring = DataEngine({RESULT: f"file:{file}"}, None, cache, memo=Path(folder) / "memo.sqlite3")
        try:
            scores = [
                _scored(scoring, models, wishes, name, str(scorer), settings.at_least.get(name))
                for name, scorer in settings.scorers.items()
            ]
        finally:
            scoring.close()
    return EvalReport(made.rows, tuple(scores), made.usage, made.warnings)


def _scored(
    engine: DataEngine, models: Models, wishes: AiWishes, name: str, scorer: str, least: object
) -> EvalScore:
    scorer = SCORERS.get(scorer.strip(), scorer)
    is_table = scorer.lstrip().lower().startswith(("select", "with"))
    sql = scorer if is_table else _mean(scorer)
    try:
        answer = engine.sql(sql, format="json", ruled=False, models=models, wishes=wishes)
    except InvalidRequest as error:
        raise type(error)(f"the scorer {name}: {error.message}", param=f"scorers.{name}") from None
    rows = cast("list[dict[str, Any]]", json.loads(answer.body))
    if is_table:
        return EvalScore(name=name, rows=answer.rows, table=tuple(rows))
    mean, deviation, count = (rows[0][key] for key in ("mean", "deviation", "n"))
    bound = float(least) if isinstance(least, int | float) else None
    width = None if deviation is None else CONFIDENCE * float(deviation) / math.sqrt(count)
    return EvalScore(
        name=name,
        rows=int(count),
        mean=None if mean is None else float(mean),
        half_width=width,
        at_least=bound,
        passed=None if bound is None else mean is not None and float(mean) >= bound,
    )


def _mean(expression: str) -> str:
    """The score of each row, and what they come to. The line ends keep a comment within the expression."""
    scores = f"SELECT CAST((\n{expression}\n) AS DOUBLE) AS score FROM {RESULT}"
    return (
        f"SELECT avg(score) AS mean, stddev_samp(score) AS deviation, count(score) AS n FROM ({scores}) AS s"
    )


def _write(answer: SqlAnswer, file: Path) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    table = arrow.ipc.open_stream(answer.body).read_all()
    with arrow.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
