"""Question and table -> SQL, from WikiSQL.

The source lists only those columns of a table that a question uses. To make the choice of columns
nontrivial, each table also gets some columns of other tables, always the same ones.
"""

import bz2
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpus import MissingData
from dialogue import Conversation, ask
from numpy.random import Generator

from data.words import pick, words

FILE = "sql/text2sql/wikisql.json.bz2"

FEWEST_COLUMNS, MAX_COLUMNS = 4, 8
SPACED_SHARE, TITLED_SHARE = 0.25, 0.08  # of prompts whose columns are written `home team` or `Home Team`

_TABLE_NAMES = words(
    """
    results players games records teams seasons events items entries people products orders customers
    cities schools films songs races matches books members countries employees sales visits projects
    flights stations
    """
)
_FIELD = re.compile(r"TABLEalias0\.(\S+?)_FIELD\b")
_SELECT = re.compile(
    r"SELECT (?:(COUNT|MAX|MIN|AVG|SUM) )?TABLEalias0\.(\S+?)_FIELD FROM TABLE AS TABLEalias0"
)
_CONDITION = re.compile(r'TABLEalias0\.(\S+?)_FIELD ([=<>]) "?(var\d+)"?')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_BARE = re.compile(r"[a-z_][a-z0-9_]*")
_KEYWORDS = frozenset(
    words(
        """
        add all alter analyze and any as asc between both by case cast check collate column commit
        constraint create cross current default delete desc distinct drop else end escape except exists
        false fetch filter first following for foreign from full glob grant group having if in index inner
        insert intersect into is isnull join key last left like limit match natural not nothing notnull
        null of offset on or order outer over partition plan pragma primary range references replace
        returning right row rows select set some table then to transaction trigger true union unique
        update user using values view when where window with
        """
    )
)


@dataclass(frozen=True, slots=True)
class Question:
    """One question; columns are in lower case with underscores, `aggregate` is empty for none."""

    text: str
    columns: tuple[str, ...]
    aggregate: str
    selected: str
    conditions: tuple[tuple[str, str, str], ...]


class Sql:
    """Draws questions of the training tables; raises MissingData."""

    name = "sql"

    def __init__(self, data: Path) -> None:
        questions = _read_questions(data / FILE)
        self.examples = questions["train"]
        self.tests = {split: questions[split] for split in ("dev", "test")}

    def draw(self, random: Generator) -> Conversation:
        """A question with its table's columns in random order and in one of the notations."""
        question = pick(self.examples, random)
        kind = random.random()
        if kind < SPACED_SHARE:
            return conversation(question, random, lambda name: name.replace("_", " "))
        if kind < SPACED_SHARE + TITLED_SHARE:
            return conversation(question, random, lambda name: name.replace("_", " ").title())
        return conversation(question, random)

    def held_out(self, count: int, seed: int, *, split: str = "dev") -> list[tuple[Question, Conversation]]:
        """Questions about tables that do not occur in the training split."""
        random = np.random.default_rng([seed, 2])
        picks = random.permutation(len(self.tests[split]))[:count]
        return [(self.tests[split][at], conversation(self.tests[split][at], random)) for at in picks]


def conversation(question: Question, random: Generator, write: Callable[[str], str] = str) -> Conversation:
    """The question with a random table name; `write` formats a column's name."""
    table = pick(_TABLE_NAMES, random)
    columns = [write(question.columns[at]) for at in random.permutation(len(question.columns))]
    return ask(prompt(table, columns, question.text), statement(question, table, write))


def prompt(table: str, columns: list[str], question: str) -> str:
    """The user message: `Table players (name, home team)`, and on the next line the question."""
    return f"Table {table} ({', '.join(columns)})\n{question}"


def statement(question: Question, table: str, write: Callable[[str], str] = str) -> str:
    """The SQL; numbers are bare, texts in single quotes. Names are quoted only if SQL requires it, so
    that they are the same tokens as in the prompt and easy to copy.
    """
    selected = named(write(question.selected))
    if question.aggregate:
        selected = f"{question.aggregate}({selected})"
    conditions = [
        f"{named(write(column))} {operator} {_literal(value)}"
        for column, operator, value in question.conditions
    ]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {selected} FROM {named(table)}{where}"


def named(name: str) -> str:
    """A name, quoted if SQL requires it."""
    return name if _BARE.fullmatch(name) and name not in _KEYWORDS else f'"{name}"'


def grammar(table: str, columns: Sequence[str]) -> str:
    """A Lark grammar of the statements that `statement` can write about this table."""
    names = " | ".join(json.dumps(named(column)) for column in columns)
    return f"""
        start: "SELECT " (column | aggregate) " FROM {json.dumps(named(table))[1:-1]}" (" WHERE " conditions)?
        aggregate: ("COUNT" | "MAX" | "MIN" | "AVG" | "SUM") "(" column ")"
        conditions: condition (" AND " condition)*
        condition: column (" = " | " < " | " > ") (NUMBER | TEXT)
        column: {names}
        NUMBER: /-?[0-9]+(\\.[0-9]+)?/
        TEXT: /'([^'\\n]|'')*'/
    """


def _literal(value: str) -> str:
    if _NUMBER.fullmatch(value):
        return value
    return "'" + value.replace("'", "''") + "'"


def _read_questions(path: Path) -> dict[str, list[Question]]:
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {FILE}")
    entries = json.loads(bz2.decompress(path.read_bytes()))
    used: dict[str, set[str]] = {}
    for entry in entries:
        fields = {_column(field) for field in _FIELD.findall(entry["sql"][0])}
        for sentence in entry["sentences"]:
            used.setdefault(sentence["table-id"], set()).update(fields)
    tables = _fill_tables(used)
    splits: dict[str, list[Question]] = {"train": [], "dev": [], "test": []}
    for entry in entries:
        for sentence in entry["sentences"]:
            question = _question(entry["sql"][0], sentence, tables[sentence["table-id"]])
            if question is not None:
                splits[sentence["question-split"]].append(question)
    return splits


def _question(sql: str, sentence: dict[str, Any], columns: tuple[str, ...]) -> Question | None:
    """None if the entry is damaged: no selected column, or a value that does not occur in the question."""
    selected = _SELECT.match(sql)
    if selected is None:
        return None
    text = " ".join(sentence["original"].split())
    found: list[tuple[int, str, str, str]] = []
    for column, operator, variable in _CONDITION.findall(sql):
        value = " ".join(sentence["variables"].get(variable, "").split())
        at = text.lower().find(value.lower())
        if not value or at < 0:
            return None
        found.append((at, _column(column), operator, text[at : at + len(value)]))
    if len(found) != sql.count(" AND ") + (" WHERE " in sql):
        return None
    # In the order of the question, which makes copying easier.
    conditions = tuple((column, operator, value) for _, column, operator, value in sorted(found))
    return Question(text, columns, selected[1] or "", _column(selected[2]), conditions)


def _column(field: str) -> str:
    """Lower case; separators between letters and digits become underscores, so most names need no quotes."""
    return re.sub(r"[\W_]+", "_", field.lower()).strip("_") or "no"


def _fill_tables(used: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
    every = sorted({column for columns in used.values() for column in columns})
    by_use = [column for table in sorted(used) for column in sorted(used[table])]
    tables: dict[str, tuple[str, ...]] = {}
    for at, table in enumerate(sorted(used)):
        random = np.random.default_rng([len(every), at])
        columns = set(used[table])
        wanted = max(len(columns) + 1, random.integers(FEWEST_COLUMNS, MAX_COLUMNS + 1))
        wanted = min(wanted, len(every))
        while len(columns) < wanted:
            columns.add(pick(by_use, random))
        tables[table] = tuple(sorted(columns))
    return tables
