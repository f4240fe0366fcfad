"""Runs the hints of a plan: rows that a statement will need are computed together, before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from headrace.data.ai_calls import FoundCall
from headrace.data.ai_values import Answers
from headrace.data.output import TooMuch
from headrace.data.plan import Hint, Plan
from headrace.data.questions import Row, too_many_rows

BATCH_ROWS = 2048
MAX_WAVE = 4096


def look_ahead(
    connection: Any,
    made: Plan,
    calls: list[FoundCall],
    answers: Answers,
    failures: tuple[type[Exception], ...],
) -> None:
    """Have the rows of all hints computed. A hint that fails with one of `failures` is dropped: what is wrong
    in the statement, the statement itself says. TooMuch where there are more than a call may have."""
    for number, reason in made.without.items():
        answers.dropped(number, reason)
    for hint in made.hints:
        try:
            if hint.wanted and hint.exact:
                _in_waves(connection, hint, calls[hint.call], answers)
            else:
                _all(connection, hint, calls[hint.call], answers)
        except failures:
            answers.dropped(hint.call, "its hint failed")


def _all(connection: Any, hint: Hint, call: FoundCall, answers: Answers) -> None:
    assert call.type is not None
    rows: dict[Row, None] = {}
    for part in _parts(connection, hint):
        rows |= dict.fromkeys(part)
        if call.type.max_rows and sum(None not in row for row in rows) > call.type.max_rows:
            if hint.exact:
                raise TooMuch(too_many_rows(call.function, call.type.max_rows))
            answers.dropped(hint.call, f"it may have more than {call.type.max_rows:,} different pairs")
            return
    answers.values(hint.call, list(rows), planned=True, exact=hint.exact)


def _in_waves(connection: Any, hint: Hint, call: FoundCall, answers: Answers) -> None:
    """The first rows of a condition until enough have passed: a first wave, then as many as the part that has
    passed so far lets expect. Rows after these are then taken not to pass, which the statement's number of
    rows proves right or wrong."""
    assert call.type is not None
    seen, passed, wave = 0, 0, max(1, call.type.wave)
    rows = (row for part in _parts(connection, hint) for row in part)
    while passed < hint.wanted:
        part = [row for row, _ in zip(rows, range(wave), strict=False)]
        if not part:
            return
        found = dict(zip(part, answers.values(hint.call, part, planned=True), strict=True))
        seen += len(part)
        passed += sum(found[row] is True for row in part)
        missing, rate = hint.wanted - passed, max(passed, 0.5) / seen
        wave = min(MAX_WAVE, max(wave if not passed else 1, math.ceil(missing / rate)))
    answers.assume(hint.call)


def _parts(connection: Any, hint: Hint) -> Iterator[list[Row]]:
    reader = connection.execute(hint.sql).to_arrow_reader(BATCH_ROWS)
    try:
        for batch in reader:
            columns = [column.to_pylist() for column in batch.columns[-hint.width :]]
            yield list(zip(*columns, strict=True))
    finally:
        reader.close()
