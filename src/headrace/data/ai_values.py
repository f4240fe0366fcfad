"""Functions of a connection that ask for the values of models: each row of arguments once.

Runs in the process of the statement.
"""

from __future__ import annotations

import importlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace.data.ai_calls import FoundCall
from headrace.data.output import TooMuch
from headrace.data.questions import (
    MAX_ROWS,
    CallSite,
    CallType,
    Compute,
    Declare,
    Dropped,
    Question,
    Row,
    Value,
    decode_types,
    decode_values,
    encode_question,
)
from headrace.isolation.fork_server import Ask

MAX_BYTES = 1 << 24
"""Of the rows of one question, about."""
MAX_ROW = 1 << 23
"""Characters of a row's arguments."""


class Answers:
    """Values of models, from the other side of `ask`. While it answers, the statement's clock stands
    still."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._values: list[dict[Row, Value]] = []
        self._assumed: set[int] = set()
        self.has_guessed = False
        self._lock = threading.Lock()

    def declare(self, sites: Sequence[CallSite]) -> list[CallType]:
        """The types of all calls."""
        self._values = [{} for _ in sites]
        return decode_types(self._asked(Declare(tuple(sites))))

    def values(
        self, call: int, rows: Sequence[Row], *, planned: bool = False, exact: bool = True
    ) -> list[Value]:
        """A value for each row."""
        known = self._values[call]
        with self._lock:  # of several threads one asks for what both lack
            missing = list(dict.fromkeys(row for row in rows if row not in known))
            if missing and call in self._assumed:
                self.has_guessed = True
                return [known.get(row, False) for row in rows]
            for part in _parts(missing):
                question = Compute(call, part, planned, exact)
                known |= zip(part, decode_values(self._asked(question)), strict=True)
        return [known[row] for row in rows]

    def assume(self, call: int) -> None:
        """Take conditions that are not known to be false from now on, and say so in `has_guessed`."""
        self._assumed.add(call)

    def assume_nothing(self) -> None:
        """Compute all again that is not known."""
        self._assumed.clear()
        self.has_guessed = False

    def dropped(self, call: int, reason: str) -> None:
        """A plan is not made."""
        self._asked(Dropped(call, reason[:200]))

    def _asked(self, question: Question) -> bytes:
        return self.asked(encode_question(question))

    def asked(self, question: bytes) -> bytes:
        """The answer to a question."""
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        answer = self._ask(question)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, left_s)
        return answer


def register(connection: Any, calls: Sequence[FoundCall], answers: Answers | None) -> None:
    """Make the functions of calls whose types are known. Without `answers` they are there to be planned only,
    and give NULL."""
    arrow: Any = importlib.import_module("pyarrow")
    for number, call in enumerate(calls):
        assert call.type is not None
        # A table would have room for a million rows, which is gigabytes of vectors.
        reader = connection.execute(f"SELECT NULL::{call.type.type} AS v").to_arrow_reader(1)
        of_type = reader.schema.field("v").type
        reader.close()
        connection.create_function(
            call.name,
            _function(number, call.type, of_type, answers, arrow),
            ["VARCHAR"] * max(1, len(call.type.varying)),
            call.type.type,
            type="arrow",
            null_handling="special",
            # Of DuckDB: with side effects it would compute all rows of ORDER BY … LIMIT.
            side_effects=False,
        )


def _function(
    number: int, call_type: CallType, of_type: Any, answers: Answers | None, arrow: Any
) -> Callable[..., Any]:
    is_constant = not call_type.varying
    kept: list[Any] = []

    def call(*columns: Any) -> Any:
        if answers is None:
            return arrow.nulls(len(columns[0]), of_type)
        if is_constant:
            rows: list[Row] = [()] * len(columns[0])
        else:
            rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
        values = arrow_values(answers.values(number, rows), of_type, arrow)
        # DuckDB's COALESCE and CASE go on using the bytes of texts after they have released them: they stay
        # until the process of the statement ends.
        kept.append(values)
        return values

    # DuckDB counts the parameters of a signature.
    names = [f"a{place}" for place in range(max(1, len(call_type.varying)))]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def arrow_values(values: Sequence[Value], of_type: Any, arrow: Any) -> Any:
    """Values as an array of Arrow's; vectors come as bytes."""
    if any(isinstance(value, bytes) for value in values):
        return arrow.array(
            [np.frombuffer(value, "<f4") if isinstance(value, bytes) else None for value in values], of_type
        )
    return arrow.array(values, of_type)


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows for one question each."""
    part: list[Row] = []
    size = 0
    for row in rows:
        width = sum(len(text) for text in row if text is not None)
        if width > MAX_ROW:
            raise TooMuch(
                f"a function that models answer reads {width:,} characters in one row or group, at most"
                f" {MAX_ROW:,} may be: select fewer rows or shorter texts for it"
            )
        size += 16 + width
        if part and (len(part) >= MAX_ROWS or size > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
    if part:
        yield part
