"""`headrace sql`: SQL over the datasets of headrace.toml."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import note, print_table, printable
from headrace.config.settings import Settings
from headrace.data.engine import AiWishes, DataEngine
from headrace.data.guard import MAX_STATEMENT
from headrace.data.job import CallCost, Format, SqlAnswer
from headrace.data.task_history import mentions_history
from headrace.economy.money import nano_of, shown_usd
from headrace.errors import UsageError
from headrace.inference.local_models import LocalModels
from headrace.search.indexes import indexes_of
from headrace.storage.database import Database
from headrace.storage.request_log import HISTORY_BYTES, LoggedRequest, LogPart, newest_of_log

HELP = """Run one SELECT over the datasets of headrace.toml: files, databases, tables on the web.

\b
  [datasets.orders]
  from = "postgres:public.orders"
  user = "reader"
  secret = "env:ORDERS_PASSWORD"

The statement is given with -c, in FILE, or on stdin. Only SELECT runs, and only over datasets.

\b
Examples:
  headrace sql -c "SELECT city, count(*) FROM people GROUP BY city"
  headrace sql report.sql --format csv > report.csv
  headrace sql --explain -c "SELECT * FROM orders WHERE id = 7"
  headrace sql -c "SELECT task, sum(execution_duration_ms) FROM headrace.task_history GROUP BY task"
  headrace sql -c "SELECT body FROM mails WHERE ai_filter('Is this a complaint?', body) LIMIT 10"
"""


class SqlFormat(StrEnum):
    """Forms of the result."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


_WRITTEN: dict[SqlFormat, Format] = {
    SqlFormat.TABLE: "json",
    SqlFormat.JSON: "json",
    SqlFormat.CSV: "csv",
    SqlFormat.ARROW: "arrow",
}
_LONGEST = 60  # characters of a cell in a table


@takes_settings("datasets", "sql", "cache_dir", "store", "node_usd_per_hour")
def command(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="File with the statement.")] = None,
    statement: Annotated[str | None, typer.Option("-c", metavar="SQL", help="The statement.")] = None,
    form: Annotated[SqlFormat, typer.Option("--format", help="Form of the result.")] = SqlFormat.TABLE,
    role: Annotated[str | None, typer.Option(help="See only what this role may see.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the plan instead.")] = False,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model of AI functions, as ai(). [default: the bundled one]"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most tokens of models for the statement.")
    ] = None,
    max_ai_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows that models may compute for it.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="USD",
            help="Most dollars that models may cost: this machine's time, and what providers bill.",
        ),
    ] = None,
    *,
    settings: Settings,
) -> None:
    """Run it; see HELP."""
    sql = _statement(file, statement)
    if form is SqlFormat.ARROW and sys.stdout.isatty():
        raise UsageError("--format arrow is binary: send it into a file or a program", param="format")
    history = _history(settings) if role is None and mentions_history(sql) else None
    engine = DataEngine(settings.datasets, settings.sql, settings.cache_folder)
    models, indexes = LocalModels(default=model, loading=_loading), indexes_of(settings)
    try:
        answer = engine.sql(
            sql,
            format="json" if explain else _WRITTEN[form],
            role=role,
            ruled=role is not None,
            explain=explain,
            models=models,
            history=history,
            indexes=indexes,
            wishes=AiWishes(
                max_tokens=max_tokens,
                max_ai_rows=max_ai_rows,
                max_cost=max_cost,
                usd_per_hour=settings.node_usd_per_hour,
            ),
        )
        _tell(answer, explain=explain)
        for name, error in engine.copies.errors.items():
            note(f"the local copy of {name} could not be made: {error}")
    finally:
        engine.close()
        indexes.close()
        models.close()
    if explain:
        print("\n".join(str(row["explain_value"]) for row in json.loads(answer.body)))
    elif form is SqlFormat.TABLE:
        print_rows(answer)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(answer.body + (b"\n" if form is SqlFormat.JSON else b""))
        sys.stdout.buffer.flush()


def _history(settings: Settings) -> list[LoggedRequest]:
    """The requests in the store of a server, which may run."""
    database = Database(settings.store_file)
    try:
        found = newest_of_log(database, None, HISTORY_BYTES) if database.exists else LogPart([], 0)
    finally:
        database.close()
    if not found.lines:
        note(f"{settings.store_file} has no requests: start the server with --log-requests")
    if found.left_out:
        note(f"the oldest {found.left_out:,} requests are left out")
    return found.lines


def _statement(file: Path | None, statement: str | None) -> str:
    if (file is None) == (statement is None) and file is not None:
        raise UsageError("give the statement with -c or in a FILE, not both", param="c")
    if statement is not None:
        return statement
    try:
        if file is not None:
            return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if sys.stdin.isatty():
        raise UsageError('no statement: headrace sql -c "SELECT …"', param="c")
    return sys.stdin.read(MAX_STATEMENT + 1)


def _loading(name: str | None) -> None:
    note(f"loading {name or 'the default model'}")


def _tell(answer: SqlAnswer, *, explain: bool) -> None:
    """What models have done for the statement, or would do."""
    usage = answer.usage
    for cost in answer.costs:
        print(_cost(cost))
    if usage is not None and not explain and usage.rows:
        known = usage.rows - usage.computed - usage.failed
        others = f", {known:,} were known" if known > 0 else ""
        others += f", {usage.failed:,} could not be computed" if usage.failed else ""
        note(
            f"models computed {usage.computed:,} of {usage.rows:,} different rows{others}: "
            f"{usage.prompt_tokens:,} prompt tokens, {usage.output_tokens:,} output tokens"
        )
    for warning in answer.warnings:
        note(f"warning: {warning}")


def _cost(cost: CallCost) -> str:
    """A line about a call."""
    name = f"{cost.function}() by {cost.model or 'the default model'}"
    if cost.rows is None:
        return f"{name}: {cost.reason}"
    bound = "" if cost.exact else f" at most: {cost.reason}"
    time = "" if cost.seconds is None else f", up to {cost.seconds:,.1f} s"
    if cost.seconds is None and cost.requests and not cost.unpriced and cost.usd is None:
        time = ", time unknown until it has computed something"
    money = "" if cost.usd is None else f", {shown_usd(nano_of(cost.usd))}"
    money = f", {cost.unpriced}" if cost.unpriced else money
    calls = "" if cost.requests == cost.rows - cost.known else f" {cost.requests:,} requests,"
    most = "" if cost.prompt_exact else " up to"
    return (
        f"{name}: {cost.rows:,} different rows, {cost.known:,} known,{calls}{most} {cost.prompt_tokens:,}"
        f" prompt tokens, up to {cost.max_output_tokens:,} of output{time}{money}{bound}"
    )


def print_rows(answer: SqlAnswer) -> None:
    """Print the rows of an answer in JSON as a table."""
    rows = msgspec.json.decode(answer.body, type=list[dict[str, msgspec.Raw]])
    if rows:
        print_table([[_cell(value) for value in row.values()] for row in rows], header=list(rows[0]))
    else:
        print("  ".join(column.name for column in answer.columns))
    note(f"{answer.rows:,} row{'' if answer.rows == 1 else 's'}")


def _cell(value: msgspec.Raw) -> str:
    """A value on one line, numbers with all their digits; what would steer a terminal is shown instead."""
    text = bytes(value).decode()
    text = "" if text == "null" else msgspec.json.decode(value, type=str) if text.startswith('"') else text
    plain = printable(text[: _LONGEST + 1])
    return plain if len(text) <= _LONGEST else plain[: _LONGEST - 1] + "…"
