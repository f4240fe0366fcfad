"""Settings of evaluations: `[evals.NAME]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import OBJECT, text
from headrace.errors import UsageError


class EvalSettings(Struct, frozen=True, kw_only=True):
    """An entry of [evals]."""

    rows: Annotated[
        str, Setting(help="SELECT of the rows, whose answers are the column `answer`", values=text("sql"))
    ] = ""
    scorers: Annotated[
        Mapping[str, object],
        Setting(
            help="what rows are scored by, by name: an expression of SQL over a row, a known name, or a"
            " SELECT over the table `result`",
            values=OBJECT,
        ),
    ] = {}
    at_least: Annotated[
        Mapping[str, object],
        Setting(help="mean below which the command fails, by scorer", values=OBJECT, shown_default="none"),
    ] = {}


EVAL_SETTINGS: Mapping[str, Setting] = table_of(EvalSettings)


def read_evals(table: Mapping[str, object] | None) -> dict[str, EvalSettings]:
    """The entries of [evals]; UsageError names what is unknown or no value."""
    return {name: _entry(entry, f"evals.{name}") for name, entry in (table or {}).items()}


def _entry(entry: object, where: str) -> EvalSettings:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is no table")
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, object]", entry).items():
        row = EVAL_SETTINGS[known_name(key, list(EVAL_SETTINGS), f"{where}: unknown {key!r}")]
        values[key] = row.parse(value, f"{where}.{key}")
    found = EvalSettings(**values)
    if not found.rows.strip() or not found.scorers:
        raise UsageError(f"{where} needs rows, a SELECT, and scorers")
    for name, scorer in found.scorers.items():
        if not isinstance(scorer, str) or not scorer.strip():
            raise UsageError(f"{where}.scorers.{name} is no expression of SQL, such as answer = expected")
    for name, least in found.at_least.items():
        known_name(name, list(found.scorers), f"{where}.at_least: there is no scorer {name!r}")
        if isinstance(least, bool) or not isinstance(least, int | float):
            raise UsageError(f"{where}.at_least.{name} is no number")
    return found
