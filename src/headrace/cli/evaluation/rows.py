"""`headrace eval NAME`: what models answer to rows of datasets, scored in SQL."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import msgspec
import typer

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import note
from headrace.config.evals import read_evals
from headrace.config.names import known_name
from headrace.config.settings import Settings
from headrace.data.engine import AiWishes, DataEngine
from headrace.data.evals import EvalReport, EvalScore, evaluate
from headrace.errors import UsageError
from headrace.inference.local_models import LocalModels

HELP = """Score what models answer to rows of datasets.

An entry of [evals] has a SELECT whose column `answer` models make, and scorers: expressions of SQL over a row
(match, exact, includes, json_match and levenshtein compare `answer` with `expected`), or a SELECT over the
table `result`. A scorer's mean comes with half the width of its 95 % interval. Answers that are known are not
computed again. Exit code 1 where a mean is below its `at_least`.

\b
Examples:
  headrace eval topics
  headrace eval topics --model Qwen/Qwen3-4B --json
"""


@takes_settings("datasets", "sql", "evals", "cache_dir", "store", "node_usd_per_hour")
def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The entry of [evals].")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Answers where the statement names no model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    max_ai_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows that models may compute for it.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, metavar="USD", help="Dollars that models may take.")
    ] = None,
    *,
    settings: Settings,
) -> None:
    """Evaluate; see HELP."""
    known = read_evals(settings.evals)
    if not known:
        raise UsageError("there are no evaluations: name them in [evals] of headrace.toml")
    wanted = known[known_name(name, list(known), f"there is no evaluation {name!r}")]
    wishes = AiWishes(max_ai_rows=max_ai_rows, max_cost=max_cost, usd_per_hour=settings.node_usd_per_hour)
    engine = DataEngine(settings.datasets, settings.sql, settings.cache_folder)
    models = LocalModels(default=model, loading=lambda name: note(f"loading {name or 'the default model'}"))
    try:
        report = evaluate(engine, models, wanted, wishes, settings.cache_folder)
    finally:
        engine.close()
        models.close()
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _show(report)
    if any(one.passed is False for one in report.scores):
        sys.exit(1)


def _show(report: EvalReport) -> None:
    for warning in report.warnings:
        note(f"warning: {warning}")
    usage = report.usage
    print(f"{report.rows:,} rows" + ("" if usage is None else f", {usage.computed:,} answers computed"))
    for one in report.scores:
        print(f"  {one.name}: {_score(one)}")
        for row in one.table[:100]:
            print("    " + ", ".join(f"{key} {_text(value)}" for key, value in row.items()))


def _score(one: EvalScore) -> str:
    if one.table:
        return f"{one.rows:,} rows"
    if one.mean is None:
        return "no row has a score"
    width = "" if one.half_width is None else f" ± {one.half_width:.4f}"
    bound = "" if one.at_least is None else f", {'at least' if one.passed else 'below'} {one.at_least:g}"
    return f"{one.mean:.4f}{width} of {one.rows:,} rows{bound}"


def _text(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
