"""What scores an answer without a model: equality, exact rules, a JSON schema, and the rows of its SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from headrace.config.extras import extra_module
from headrace.errors import HeadraceError, InvalidRequest
from headrace.evals.suite import Case, Exact, Rule, Rules, Schema, Sql
from headrace.tasks.guards.schema import SchemaCheck
from headrace.tokenization.linear_pattern import compile_re2

MAX_ANSWER = 100_000
"""Characters of an answer that patterns are looked for in."""
MAX_ROWS = 10_000
Problem = str
"""What is wrong with an answer; "" where it is right."""
Check = Callable[[Case, str], Problem]
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n(.*?)\n?```\s*\Z", re.DOTALL)


@contextmanager
def checks(evaluator: Exact | Rules | Schema | Sql) -> Generator[Check]:
    """What checks answers, until the block ends. UsageError where the evaluator is none."""
    if isinstance(evaluator, Exact):
        yield lambda case, said: _exact(str(case.expected), said, ignore_case=evaluator.ignore_case)
    elif isinstance(evaluator, Rules):
        yield lambda case, said: _ruled((*evaluator.rules, *case.rules), said)
    elif isinstance(evaluator, Schema):
        check = SchemaCheck("evaluator", evaluator.schema)
        yield lambda case, said: check.problem(plain(said)) or _same_value(case, plain(said))
    else:
        with _executed(evaluator) as check:
            yield check


def plain(text: str) -> str:
    """A text without the fence of code that models put around it."""
    found = _FENCE.match(text)
    return found[1] if found else text


def _exact(expected: str, said: str, *, ignore_case: bool) -> Problem:
    pair = [one.strip().casefold() if ignore_case else one.strip() for one in (expected, said)]
    return "" if pair[0] == pair[1] else "not the expected answer"


def _same_value(case: Case, said: str) -> Problem:
    if case.expected is None:
        return ""
    return "" if _equal(json.loads(said), case.expected) else "not the expected value"


def _equal(one: object, other: object) -> bool:
    """As JSON has it: to Python true is 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        found, wanted = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return found.keys() == wanted.keys() and all(_equal(found[name], wanted[name]) for name in found)
    if isinstance(one, list) and isinstance(other, list):
        pairs = cast("list[object]", one), cast("list[object]", other)
        return len(pairs[0]) == len(pairs[1]) and all(map(_equal, *pairs))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _ruled(rules: Sequence[Rule], said: str) -> Problem:
    for rule in rules:
        if problem := _broken(rule, said[:MAX_ANSWER]):
            return problem
    return ""


def _broken(rule: Rule, said: str) -> Problem:
    def has(test: Callable[[str, str], bool], wanted: str | None) -> bool:
        if wanted is None:
            return True
        pair = (said.strip(), wanted)
        one, other = (each.casefold() if rule.ignore_case else each for each in pair)
        return test(one, other)

    tests = (
        (has(str.__eq__, None if rule.equals is None else rule.equals.strip()), "equals"),
        (has(lambda one, other: other in one, rule.contains), "contains"),
        (has(lambda one, other: other not in one, rule.not_contains), "not_contains"),
        (has(str.startswith, rule.starts_with), "starts_with"),
        (has(str.endswith, rule.ends_with), "ends_with"),
        (rule.max_characters is None or len(said.strip()) <= rule.max_characters, "max_characters"),
        (rule.matches is None or _matches(rule.matches, said, rule.ignore_case), "matches"),
        (rule.number is None or _is_number(said, rule.number, rule.tolerance), "number"),
        (rule.json_equals is None or _is_json(plain(said), rule.json_equals), "json_equals"),
    )
    return next((f"rule {name} does not hold" for holds, name in tests if not holds), "")


def _matches(pattern: str, said: str, ignore_case: bool) -> bool:
    def refused(cause: str) -> InvalidRequest:
        return InvalidRequest(f"the rule matches {pattern!r:.100} is no pattern: {cause}", param="rules")

    return compile_re2(pattern, refused, case_sensitive=not ignore_case).search(said) is not None


def _is_number(said: str, wanted: float, tolerance: float) -> bool:
    found = _NUMBER.findall(said)
    return bool(found) and abs(float(found[-1].replace(",", "")) - wanted) <= tolerance


def _is_json(said: str, wanted: object) -> bool:
    try:
        return _equal(json.loads(said), wanted)
    except (ValueError, RecursionError):
        return False


@contextmanager
def _executed(evaluator: Sql) -> Generator[Check]:
    """Statements run as those of `headrace sql`: in its process, reading only, within its limits."""
    engines = extra_module("data", "headrace.data.engine", "duckdb", "pyarrow")
    with TemporaryDirectory(prefix="headrace-suite-") as folder:
        datasets = dict(evaluator.datasets)
        for name, rows in evaluator.tables.items():
            file = Path(folder) / f"{len(datasets)}.json"
            file.write_text("\n".join(json.dumps(row, default=str) for row in rows))
            datasets[name] = f"file:{file}"
        engine = engines.DataEngine(datasets, None, Path(folder), memo=Path(folder) / "memo.sqlite3")

        def rows_of(sql: str) -> list[str]:
            answer = engine.sql(sql, format="json", rows=MAX_ROWS)
            rows = cast("list[dict[str, Any]]", json.loads(answer.body))
            return [json.dumps([_cell(one) for one in row.values()]) for row in rows]

        known: dict[str, list[str]] = {}

        def check(case: Case, said: str) -> Problem:
            wanted = str(case.expected)
            if wanted not in known:
                try:
                    known[wanted] = rows_of(wanted)
                except HeadraceError as error:
                    raise InvalidRequest(
                        f"the expected SQL of a case fails: {error.message}", param="expected"
                    ) from None
            try:
                found = rows_of(plain(said).strip().rstrip(";"))
            except HeadraceError as error:
                return f"its SQL fails: {error.message[:200]}"
            same = found == known[wanted] if evaluator.ordered else sorted(found) == sorted(known[wanted])
            return "" if same else f"{len(found):,} rows that are not the {len(known[wanted]):,} expected"

        try:
            yield check
        finally:
            engine.close()


def _cell(value: object) -> object:
    """A value as it is compared: numbers without their type."""
    return round(float(value), 9) if isinstance(value, int | float) and not isinstance(value, bool) else value
