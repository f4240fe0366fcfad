"""`headrace nsql`: questions in words over the datasets of headrace.toml."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.sql import print_rows
from headrace.cli.terminal import note
from headrace.config.settings import Settings
from headrace.data.engine import DataEngine
from headrace.data.job import SqlAnswer
from headrace.data.nsql import NsqlAnswer, NsqlQuestion, answer_question, columns_of
from headrace.errors import UsageError
from headrace.inference.keywords import new_call, new_id
from headrace.inference.requests import ChatRequest
from headrace.llm import AsyncLLM

HELP = """Ask the datasets of headrace.toml a question in words.

A model writes one SELECT that can name only tables and columns that there are; it is planned before it runs,
and corrected once where it fails. With -n several are written, and the one whose result most have is taken.

\b
Examples:
  headrace nsql "Which city has most people?"
  headrace nsql -m Qwen/Qwen3-4B -n 5 "Revenue by month?"
  headrace nsql --dataset people --format sql "How many people live in Oslo?"
"""


class NsqlFormat(StrEnum):
    """Forms of the result."""

    TABLE = "table"
    JSON = "json"
    SQL = "sql"


@takes_settings("datasets", "sql", "cache_dir")
def command(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model that writes.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Datasets to ask; all without.")] = None,
    count: Annotated[int, typer.Option("-n", min=1, max=16, help="Statements to compare.")] = 1,
    form: Annotated[NsqlFormat, typer.Option("--format", help="Form of the result.")] = NsqlFormat.TABLE,
    *,
    settings: Settings,
) -> None:
    """Ask; see HELP."""
    if not settings.datasets:
        raise UsageError("there are no datasets: name them in [datasets] of headrace.toml")
    engine = DataEngine(settings.datasets, settings.sql, settings.cache_folder)
    try:
        found = asyncio.run(_ask(question, tuple(dataset or ()), count, model, engine))
    finally:
        engine.close()
    if form is NsqlFormat.SQL:
        print(found.sql)
        return
    note(found.sql)
    if form is NsqlFormat.JSON:
        print(found.answer.body.decode())
    else:
        print_rows(found.answer)


async def _ask(
    question: str, datasets: tuple[str, ...], count: int, model: str | None, engine: DataEngine
) -> NsqlAnswer:
    async with AsyncLLM(model) as llm:
        return await answer_by_sql(question, datasets, count, llm, engine)


async def answer_by_sql(
    question: str, datasets: tuple[str, ...], count: int, llm: AsyncLLM, engine: DataEngine
) -> NsqlAnswer:
    """The best of `count` statements of a model, and its rows; all datasets where none are named."""
    asked = NsqlQuestion(
        text=question,
        request=ChatRequest(id=new_id(), messages=()),
        datasets=datasets,
        candidates=count,
        context_length=llm.model.context_length,
    )
    return await answer_question(asked, _Engine(engine), llm.handler, new_call({}))


class _Engine:
    """See `data.nsql.Statements`: all rows and columns, as the command line has them."""

    def __init__(self, engine: DataEngine) -> None:
        self._engine = engine

    async def tables(self, names: Sequence[str]) -> dict[str, list[str]]:
        known = [dataset.name for dataset in self._engine.catalogue]
        if unknown := set(names) - set(known):
            raise UsageError(f"there is no dataset {min(unknown)!r}", param="dataset")
        return await columns_of(self, names or known, were_named=bool(names), warn=note)

    async def run(self, sql: str, *, rows: int | None = None, explain: bool = False) -> SqlAnswer:
        return await asyncio.to_thread(
            self._engine.sql, sql, format="json", ruled=False, rows=rows, explain=explain
        )
