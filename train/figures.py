"""Metrics of a model card: quality of answers, as shares of held-out examples."""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from data.sql import Question

_NAME = r'"(?:[^"]|"")*"|[a-z_][a-z0-9_]*'
_STATEMENT = re.compile(
    rf"SELECT (?:(?P<aggregate>[A-Z]+)\()?(?P<selected>{_NAME})\)? FROM (?:{_NAME})(?: WHERE (?P<where>.*))?",
    re.DOTALL,
)
_CONDITION = re.compile(rf"({_NAME}) ([=<>]) ('(?:[^']|'')*'|-?\d+(?:\.\d+)?)(?: AND |$)")
_BEFORE_NAME = re.compile(r"^(?:sudo |\w+=\S* )+")


@dataclass(frozen=True, slots=True)
class Form:
    """A statement normalized over the order of its conditions and the case of its texts."""

    aggregate: str
    selected: str
    conditions: frozenset[tuple[str, str, str]]


def command_name(command: str) -> str:
    """The program that a command line runs first: `tar` for `sudo tar xf a.tar`."""
    return _BEFORE_NAME.sub("", command).partition(" ")[0]


def logical_form(statement: str) -> Form | None:
    """None if the statement does not have the form that the model is trained on."""
    match = _STATEMENT.fullmatch(statement.strip())
    if match is None:
        return None
    where = match["where"] or ""
    found = _CONDITION.findall(where)
    if len(_CONDITION.sub("", where)):
        return None
    conditions = ((_bare(column), operator, _value(literal)) for column, operator, literal in found)
    return Form(match["aggregate"] or "", _bare(match["selected"]), frozenset(conditions))


def _bare(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _value(literal: str) -> str:
    return literal[1:-1].replace("''", "'").lower() if literal.startswith("'") else literal


def runs(statement: str, table: str, columns: Sequence[str]) -> bool:
    """True if SQLite runs it on an empty table with these columns, and every quoted name is one of them.

    SQLite alone would treat an unknown quoted name as a text.
    """
    known = {table, *columns}
    if not set(re.findall(r'"((?:[^"]|"")*)"', re.sub(r"'(?:[^']|'')*'", "''", statement))) <= known:
        return False
    with sqlite3.connect(":memory:") as database:
        quoted = ", ".join(f'"{column}"' for column in dict.fromkeys(columns))
        database.execute(f'CREATE TABLE "{table}" ({quoted})')
        try:
            database.execute(statement).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return False
    return True


def wanted_form(question: Question) -> Form:
    """The expected answer; columns are written as in the held-out prompts."""
    conditions = frozenset((c, operator, value.lower()) for c, operator, value in question.conditions)
    return Form(question.aggregate, question.selected, conditions)


def accepted_per_step(target: Sequence[int], draft: Sequence[int], drafted: int) -> tuple[int, int]:
    """(accepted draft tokens, steps) of greedy speculation: `draft[i]` is the draft model's choice where
    the target model chose `target[i]`; a step drafts `drafted` tokens and adds one token of the
    target.
    """
    at = accepted = steps = 0
    while at < len(target):
        matched = 0
        while (
            matched < drafted and at + matched < len(target) and draft[at + matched] == target[at + matched]
        ):
            matched += 1
        accepted += matched
        steps += 1
        at += matched + 1
    return accepted, steps
