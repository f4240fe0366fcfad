"""Suites of cases, as people write them in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.config.yaml_text import read_yaml
from headrace.errors import UsageError

MAX_BYTES = 16 << 20
MAX_PARTS = 1_000_000
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=1_000_000)]


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One test of an answer; all that are given must hold. `number` is the last one of the answer, within
    `tolerance`."""

    equals: str | None = None
    contains: str | None = None
    not_contains: str | None = None
    matches: Annotated[str, Meta(max_length=2000)] | None = None
    starts_with: str | None = None
    ends_with: str | None = None
    max_characters: Annotated[int, Meta(ge=0)] | None = None
    number: float | None = None
    tolerance: Annotated[float, Meta(ge=0)] = 0.0
    json_equals: Any = None
    ignore_case: bool = False


class Exact(Struct, frozen=True, kw_only=True, tag="exact", tag_field="type", forbid_unknown_fields=True):
    """The answer is `expected`, white space at its ends aside."""

    ignore_case: bool = False


class Rules(Struct, frozen=True, kw_only=True, tag="rules", tag_field="type", forbid_unknown_fields=True):
    """Tests by exact rules: those of all cases, and those of a case in its `rules`."""

    rules: tuple[Rule, ...] = ()


class Schema(
    Struct, frozen=True, kw_only=True, tag="json_schema", tag_field="type", forbid_unknown_fields=True
):
    """The answer is JSON of a schema; where a case has `expected` it is also that value."""

    schema: dict[str, Any]


class Sql(Struct, frozen=True, kw_only=True, tag="sql", tag_field="type", forbid_unknown_fields=True):
    """The answer is a SELECT that gives the rows of `expected`, in the same order only where that matters.
    `tables` have their rows in the suite; `datasets` are those of headrace.toml, by name as there."""

    tables: dict[Name, Annotated[list[dict[str, Any]], Meta(min_length=1)]] = {}
    datasets: dict[Name, Any] = {}
    ordered: bool = False


class Label(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer that a person has judged: a score from 0 to 1."""

    prompt: Text
    answer: Text
    expected: Text = ""
    score: Annotated[float, Meta(ge=0, le=1)]


class Judge(Struct, frozen=True, kw_only=True, tag="judge", tag_field="type", forbid_unknown_fields=True):
    """A model compares the answer with `expected`, in both orders, without knowing which is which. `labels`
    correct it."""

    model: Name
    criteria: Text = "Which answer is better: right, complete, and to the point?"
    labels: tuple[Label, ...] = ()


class Consistency(
    Struct, frozen=True, kw_only=True, tag="self_consistency", tag_field="type", forbid_unknown_fields=True
):
    """The part of `samples` answers that say the same as most of them; 0 where a case has `expected` and most
    of them say something else."""

    samples: Annotated[int, Meta(ge=2, le=64)] = 5
    temperature: Annotated[float, Meta(gt=0, le=2)] = 0.7


Evaluator = Exact | Rules | Schema | Sql | Judge | Consistency


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, and what is right."""

    prompt: Text
    id: Name | None = None
    expected: Any = None
    rules: tuple[Rule, ...] = ()


class Suite(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cases, and how answers to them are scored."""

    name: Name
    evaluator: Evaluator
    cases: Annotated[tuple[Case, ...], Meta(min_length=1, max_length=100_000)]
    system: Text = ""
    max_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 256
    at_least: Annotated[float, Meta(ge=0, le=1)] | None = None


def read_suite(file: Path) -> Suite:
    """The suite in a file; UsageError names the field that is wrong."""
    try:
        data = file.read_bytes() if file.stat().st_size <= MAX_BYTES else None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    if data is None:
        raise UsageError(f"{file} has more than {MAX_BYTES:,} bytes, a suite has at most that")
    try:
        suite = msgspec.convert(read_yaml(data, str(file), MAX_PARTS), Suite)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {error}") from None
    _check(suite, file)
    return suite


def _check(suite: Suite, file: Path) -> None:
    names = [one.id for one in suite.cases if one.id is not None]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{file}: two cases have the id {twice!r}")
    kind = suite.evaluator
    for number, case in enumerate(suite.cases, 1):
        where = f"{file}: case {case.id or number}"
        if case.expected is None and isinstance(kind, Exact | Sql | Judge):
            raise UsageError(f"{where} has no expected, which the evaluator needs")
        if not isinstance(case.expected, str) and isinstance(kind, Sql | Judge):
            raise UsageError(f"{where}: expected is no text")
        if isinstance(kind, Rules) and not (kind.rules or case.rules):
            raise UsageError(f"{where} has no rules")
        if case.rules and not isinstance(kind, Rules):
            raise UsageError(f"{where} has rules, which the evaluator rules alone reads")
    if isinstance(kind, Sql) and not (kind.tables or kind.datasets):
        raise UsageError(f"{file}: evaluator sql needs tables or datasets")
