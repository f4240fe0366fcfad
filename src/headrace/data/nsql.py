"""Questions in words over datasets: a model writes SQL that can name only what there is, and it is checked.

The grammar comes from the catalogue: the answer is one SELECT over existing tables and columns. Several
statements are compared by what they give, and one that fails is corrected by its error.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from headrace.chat.messages import Message
from headrace.data.engine import SourceDown, SqlFailed
from headrace.data.guard import StatementRefused
from headrace.data.job import SqlAnswer
from headrace.data.table_choice import tables_for
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.grammar.sql import quoted, sql_constraint
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler, open_stream
from headrace.inference.requests import ChatRequest
from headrace.inference.result import collect

SAMPLE_ROWS = 100
MAX_TOKENS = 512
_TEMPERATURE = 0.8
_PLAIN = re.compile(r"\w+(?: \w+)*")


class Statements(Protocol):
    """Runs SQL as the key of a request may."""

    async def tables(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The columns of datasets, of all without names."""
        ...

    async def run(self, sql: str, *, rows: int | None = None, explain: bool = False) -> SqlAnswer:
        """The rows of a statement, or its plan."""
        ...


class NsqlAttempt(Struct, frozen=True):
    """A statement of the model, and why it was not taken; None where it can be run."""

    sql: str
    error: str | None = None


class NsqlFailed(InvalidRequest):
    """No statement that the model wrote can be run; `attempts` has them all."""

    attempts: tuple[NsqlAttempt, ...] = ()
    remedy = "Ask in the words of the columns, name the `datasets`, or use a larger model."
    code = "nsql_failed"


class NsqlAnswer(Struct, frozen=True, kw_only=True):
    """The statement and its rows. `agreement` is how many of the statements gave the same."""

    sql: str
    answer: SqlAnswer
    attempts: tuple[NsqlAttempt, ...]
    agreement: int = 1


class NsqlQuestion(Struct, frozen=True, kw_only=True):
    """What is asked of which datasets (none: those that the question needs). `candidates` statements are
    compared, `repairs` may be made where none can be run. `context_length` is the model's, in tokens, where
    it is known: a small one is shown the tables that the question names (`data/table_choice.py`)."""

    text: str
    request: ChatRequest
    datasets: tuple[str, ...] = ()
    candidates: int = 1
    repairs: int = 1
    rows: int | None = None
    context_length: int | None = None


async def answer_question(
    question: NsqlQuestion, statements: Statements, handler: Handler, call: CallContext
) -> NsqlAnswer:
    """Write a statement and run it. Raises NsqlFailed, and what the engine says of limits and sources."""
    tables = await statements.tables(question.datasets)
    if not question.datasets:
        tables = tables_for(question.text, tables, question.context_length)
    request = replace(
        question.request,
        messages=(Message("user", prompt_of(question.text, tables)),),
        constraint=sql_constraint(tables, param="datasets"),
        finish_within_max_tokens=True,
    )
    writer = _Writer(statements, handler, call)
    written = await writer.several(request, question.candidates)
    attempts: list[NsqlAttempt] = []
    for repair in range(question.repairs + 1):
        tried = [await writer.tried(sql, is_only=len(written) == 1) for sql in written]
        attempts += [NsqlAttempt(sql, error) for sql, (_, error) in zip(written, tried, strict=True)]
        best = _best(written, [sample for sample, _ in tried])
        if best is not None:
            sql, agreement = best
            try:
                answer = await statements.run(sql, rows=question.rows)
            except SqlFailed as error:  # some values show themselves only in the rows
                attempts.append(NsqlAttempt(sql, error.message))
            else:
                return NsqlAnswer(sql=sql, answer=answer, attempts=tuple(attempts), agreement=agreement)
        if repair < question.repairs:
            failed = attempts[-1]
            wrong = f"This statement fails: {failed.error}\nWrite it again, correctly."
            said = (Message("assistant", failed.sql), Message("user", wrong))
            try:
                written = await writer.several(replace(request, messages=(*request.messages, *said)), 1)
            except ContextLengthExceeded:  # that of the model is too short for a repair
                break
    failed = attempts[-1]
    error = NsqlFailed(f"no statement could be run; the last was {failed.sql[:200]}: {failed.error}")
    error.attempts = tuple(attempts)
    raise error


async def columns_of(
    statements: Statements, names: Sequence[str], *, were_named: bool, warn: Callable[[str], object]
) -> dict[str, list[str]]:
    """The columns of datasets. One that cannot be opened is left out with a warning, where it was not
    `were_named` and others can be."""
    found: dict[str, list[str]] = {}
    down: list[SourceDown] = []
    for name in names:
        try:
            answer = await statements.run(f"SELECT * FROM {quoted(name)} LIMIT 0")
        except SourceDown as error:
            if were_named:
                raise
            down.append(error)
        else:
            found[name] = [column.name for column in answer.columns]
    if down and not found:
        raise down[0]
    for error in down:
        warn(f"{error.message}; it was left out")
    return found


def prompt_of(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The question after the tables, as the bundled model has learned it: names without quotes, but those
    that could be taken for something else."""
    lines = [f"Table {_named(name)} ({', '.join(map(_named, columns))})" for name, columns in tables.items()]
    return "\n".join([*lines, text])


def _named(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


class _Writer:
    def __init__(self, statements: Statements, handler: Handler, call: CallContext) -> None:
        self._statements, self._handler, self._call = statements, handler, call

    async def several(self, request: ChatRequest, count: int) -> list[str]:
        """So many statements, the first the likeliest; equal ones once for each time."""
        settings: list[dict[str, Any]] = [{"temperature": 0.0}]
        settings += [{"temperature": _TEMPERATURE, "seed": seed} for seed in range(1, count)]
        asked = [
            replace(
                request,
                id=f"{request.id}.{number}",
                sampling={**request.sampling, "max_tokens": MAX_TOKENS, **more},
                fit_context=True,
            )
            for number, more in enumerate(settings)
        ]
        return list(await asyncio.gather(*map(self._said, asked)))

    async def _said(self, request: ChatRequest) -> str:
        result = await collect(await open_stream(self._handler, request, self._call))
        return result.prompts[0].choices[0].output.content.strip().removesuffix(";")

    async def tried(self, sql: str, *, is_only: bool) -> tuple[bytes | None, str | None]:
        """The first rows of a statement, or why it cannot be run."""
        try:
            if is_only:
                await self._planned(sql)
                return b"", None
            return (await self._statements.run(f"SELECT * FROM ({sql}) LIMIT {SAMPLE_ROWS}")).body, None
        except (SqlFailed, StatementRefused) as error:
            return None, error.message

    async def _planned(self, sql: str) -> None:
        try:
            await self._statements.run(sql, explain=True)
        except (SqlFailed, StatementRefused):
            raise
        except InvalidRequest:  # this key may not see plans: no row is read
            await self._statements.run(f"SELECT * FROM ({sql}) LIMIT 0")


def _best(written: Sequence[str], samples: Sequence[bytes | None]) -> tuple[str, int] | None:
    """The first statement whose result most others have, too."""
    counts = Counter(sample for sample in samples if sample is not None)
    if not counts:
        return None
    most = max(counts.values())
    at = next(i for i, sample in enumerate(samples) if sample is not None and counts[sample] == most)
    return written[at], most
