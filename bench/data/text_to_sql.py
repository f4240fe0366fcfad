"""Questions in words over Chinook, WikiSQL and Advising: which statements parse, name what there is, and give
the right rows, beside the same model asked once without a grammar.

    python bench/data/text_to_sql.py [--model mini] [--questions 60] [--sets chinook wikisql advising]

The data sets are in $HEADRACE_SHARED_DATA (../shared/data), which is not part of the project. Chinook has its
rows, and 20 questions of this file. The other two come without rows: their tables are filled with random
rows in which the constants of the right statements are frequent, and questions whose right statement gives
no row of them are left out. Two results are equal if their rows are, in any order, and without names.
"""

from __future__ import annotations

import argparse
import asyncio
import bz2
import csv
import json
import lzma
import os
import random
import re
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.nsql import answer_by_sql
from headrace.data.engine import DataEngine
from headrace.data.nsql import MAX_TOKENS, NsqlFailed, prompt_of
from headrace.errors import HeadraceError
from headrace.llm import AsyncLLM

DATA = Path(os.environ.get("HEADRACE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data")) / "sql"
ROWS, SEED = 40, 3
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
CHINOOK = {
    "How many tracks are there?": "SELECT COUNT(*) FROM Track",
    "How many artists are there?": "SELECT COUNT(*) FROM Artist",
    "List the names of all genres.": "SELECT Name FROM Genre",
    "What is the name of the artist with id 1?": "SELECT Name FROM Artist WHERE ArtistId = 1",
    "Which customers live in Brazil? Give their last names.": (
        "SELECT LastName FROM Customer WHERE Country = 'Brazil'"
    ),
    "What is the longest track in milliseconds?": "SELECT MAX(Milliseconds) FROM Track",
    "What is the average total of an invoice?": "SELECT AVG(Total) FROM Invoice",
    "How many customers are there in each country?": (
        "SELECT Country, COUNT(*) FROM Customer GROUP BY Country"
    ),
    "What is the email of the customer with the last name Almeida?": (
        "SELECT Email FROM Customer WHERE LastName = 'Almeida'"
    ),
    "Which tracks cost more than 1 dollar? Give their names.": "SELECT Name FROM Track WHERE UnitPrice > 1",
    "How many invoices are from Germany?": "SELECT COUNT(*) FROM Invoice WHERE BillingCountry = 'Germany'",
    "Name the albums of AC/DC.": (
        "SELECT Title FROM Album JOIN Artist USING (ArtistId) WHERE Artist.Name = 'AC/DC'"
    ),
    "What is the total of all invoices?": "SELECT SUM(Total) FROM Invoice",
    "Who is the general manager? Give the last name.": (
        "SELECT LastName FROM Employee WHERE Title = 'General Manager'"
    ),
    "List the titles of the employees.": "SELECT Title FROM Employee",
    "How many tracks are there of the genre Rock?": (
        "SELECT COUNT(*) FROM Track JOIN Genre USING (GenreId) WHERE Genre.Name = 'Rock'"
    ),
    "What are the names of the playlists?": "SELECT Name FROM Playlist",
    "Which media types are there?": "SELECT Name FROM MediaType",
    "Which cities do customers of the USA live in?": ("SELECT City FROM Customer WHERE Country = 'USA'"),
    "What is the smallest invoice total?": "SELECT MIN(Total) FROM Invoice",
}


@dataclass
class Question:
    """What is asked over which tables of a file, and the right statement in SQLite's dialect."""

    text: str
    right: str
    file: Path
    tables: tuple[str, ...]


@dataclass
class Score:
    """How many of the statements did what."""

    asked: int = 0
    found: Counter[str] = field(default_factory=Counter)


def chinook(folder: Path, count: int) -> Iterator[Question]:
    """Questions over the rows of Chinook."""
    file = folder / "chinook.db"
    file.write_bytes(lzma.decompress((DATA / "chinook" / "Chinook_Sqlite.sqlite.xz").read_bytes()))
    with sqlite3.connect(file) as database:
        named = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = tuple(sorted(name for (name,) in named if not name.startswith("sqlite_")))
    for text, right in list(CHINOOK.items())[:count]:
        yield Question(text, right, file, tables)


def filled(text: str, values: dict[str, str]) -> str:
    """A question or a statement with its variables' values."""
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(name, values[name])
    return text


def for_sqlite(sql: str) -> str:
    """Strings in single quotes."""
    return re.sub(r'"([^"]*)"', lambda found: "'" + found[1].replace("'", "''") + "'", sql).strip(" ;")


def wikisql(folder: Path, count: int) -> Iterator[Question]:
    """One table a question; its columns are those that any question of that table names, without the ending
    _FIELD that the collection gave them."""
    entries = json.loads(bz2.decompress((DATA / "text2sql" / "wikisql.json.bz2").read_bytes()))
    columns: dict[str, set[str]] = defaultdict(set)
    asked: list[tuple[str, str, str]] = []
    for entry in entries:
        for said in entry["sentences"]:
            columns[said["table-id"]] |= set(re.findall(r"TABLEalias0\.(\w+)", as_named(entry["sql"][0])))
            if said["question-split"] == "test":
                text = filled(said["text"], values_of(entry, said))
                asked.append((said["table-id"], text, as_named(filled_of(entry, said))))
    random.Random(SEED).shuffle(asked)
    for at, (table, text, sql) in enumerate(asked[: 6 * count]):
        right = re.sub(r"\bTABLE\b", "records", sql)
        file = folder / f"wiki{at}.db"
        make_tables(file, {"records": dict.fromkeys(sorted(columns[table]), "TEXT")}, [right])
        yield Question(text, right, file, ("records",))


def as_named(sql: str) -> str:
    """A statement with the names of columns as people write them."""
    return re.sub(r"TABLEalias0\.(\w+?)_FIELD\b", lambda found: f"TABLEalias0.{found[1].lower()}", sql)


def values_of(entry: dict[str, Any], said: dict[str, Any]) -> dict[str, str]:
    """The values of the variables of a sentence."""
    values = {one["name"]: one["example"] for one in entry["variables"]}
    return values | {name: value for name, value in said["variables"].items() if value}


def filled_of(entry: dict[str, Any], said: dict[str, Any]) -> str:
    """The right statement of a sentence."""
    return for_sqlite(filled(entry["sql"][0], values_of(entry, said)))


def advising(folder: Path, count: int) -> Iterator[Question]:
    """Tables of a university: those that the right statement reads, all of them are too long a prompt."""
    schema: dict[str, dict[str, str]] = defaultdict(dict)
    with (DATA / "text2sql" / "advising-schema.csv").open(newline="") as lines:
        for table, column, kind, *_ in csv.reader(lines, skipinitialspace=True):
            if table.strip().isupper():
                schema[table.strip()][column.strip()] = "INTEGER" if kind.startswith("int") else "TEXT"
    entries = json.loads(lzma.decompress((DATA / "text2sql" / "advising.json.xz").read_bytes()))
    asked: list[tuple[str, str]] = []
    for entry in entries:
        for said in entry["sentences"][:2]:
            asked.append((filled(said["text"], values_of(entry, said)), filled_of(entry, said)))
    random.Random(SEED).shuffle(asked)
    file = folder / "advising.db"
    make_tables(file, schema, [right for _, right in asked])
    for text, right in asked[: 6 * count]:
        read = set(re.findall(r"\b(\w+) AS ", right)) & set(schema)
        yield Question(text, right, file, tuple(sorted(read)))


def make_tables(file: Path, schema: dict[str, dict[str, str]], statements: Iterable[str]) -> None:
    """Tables of random rows, in which the constants of the statements are frequent."""
    drawn = random.Random(SEED)
    constants: dict[str, list[str]] = defaultdict(list)
    for sql in statements:
        for column, _, quoted, number in re.findall(
            r"\.(\w+)\s*(=|LIKE|[<>]=?)\s*(?:'([^']*)'|(-?[\d.]+))", sql
        ):
            constants[column.upper()].append((quoted or number).strip("%"))
    with sqlite3.connect(file) as database:
        for table, columns in schema.items():
            shape = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
            database.execute(f'CREATE TABLE "{table}" ({shape})')
            for _ in range(ROWS):
                row = [value(drawn, kind, constants[name.upper()]) for name, kind in columns.items()]
                database.execute(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(row))})', row)
    database.close()


def value(drawn: random.Random, kind: str, constants: Sequence[str]) -> str | int:
    """Of a cell: each second one is a constant, where there are any."""
    if constants and drawn.random() < 0.5:
        return drawn.choice(constants)
    return drawn.randrange(6) if kind == "INTEGER" else drawn.choice(WORDS)


def right_rows(question: Question) -> Counter[str] | None:
    """None where the right statement fails or gives nothing."""
    with sqlite3.connect(question.file) as database:
        try:
            rows = database.execute(question.right).fetchall()
        except sqlite3.Error:
            rows = []
    database.close()
    return as_counted(rows) if any(cell not in (None, 0) for row in rows for cell in row) else None


def as_counted(rows: Iterable[Sequence[object]]) -> Counter[str]:
    """Rows in any order; numbers to six places."""

    def plain(cell: object) -> str:
        try:
            return f"{float(str(cell)):.6g}"
        except ValueError:
            return str(cell)

    return Counter("\t".join(map(plain, row)) for row in rows)


def outcome(sql: str, engine: DataEngine, right: Counter[str]) -> Iterator[str]:
    """What is true of a statement: each word counts once."""
    try:
        engine.sql(sql, format="json", ruled=False, explain=True)
    except HeadraceError as error:
        yield "parses" if "Parser Error" not in error.message else "does not parse"
        if re.search(r"Parser Error|Catalog Error|not found|does not exist|no dataset", error.message):
            return
        yield "names what there is"
        return
    yield from ("parses", "names what there is", "planned")
    try:
        body = engine.sql(sql, format="json", ruled=False).body
    except HeadraceError:
        return
    if as_counted([tuple(row.values()) for row in json.loads(body)]) == right:
        yield "right rows"


async def written(llm: AsyncLLM, question: Question, engine: DataEngine) -> str:
    """Under the grammar of the tables, repaired once."""
    try:
        return (await answer_by_sql(question.text, (), 1, llm, engine)).sql
    except NsqlFailed as error:
        return error.attempts[-1].sql


async def one_shot(llm: AsyncLLM, question: Question, engine: DataEngine) -> str:
    """The same prompt, without grammar and repair."""
    tables = {name: columns(question.file, name) for name in question.tables}
    asked = [{"role": "user", "content": prompt_of(question.text, tables)}]
    said = await llm.chat(asked, temperature=0.0, max_tokens=MAX_TOKENS)
    return said.text.strip().removesuffix(";")


def columns(file: Path, table: str) -> list[str]:
    """Of a table, in order."""
    with sqlite3.connect(file) as database:
        found = [name for _, name, *_ in database.execute(f'PRAGMA table_info("{table}")')]
    database.close()
    return found


SETS: dict[str, Callable[[Path, int], Iterator[Question]]] = {
    "chinook": chinook,
    "wikisql": wikisql,
    "advising": advising,
}
WAYS = {"headrace nsql": written, "one-shot": one_shot}
SHOWN = ("parses", "names what there is", "planned", "right rows")


async def measure(name: str, model: str, count: int) -> dict[str, Score]:
    """All questions of a set, each way."""
    scores = {way: Score() for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncLLM(model) as llm:
            for question in SETS[name](Path(folder), count):
                right = right_rows(question)
                if right is None or scores["one-shot"].asked == count:
                    continue
                sources = {table: {"from": f"sqlite:{question.file}#{table}"} for table in question.tables}
                engine = DataEngine(sources, None, Path(folder) / "cache")
                for way, write in WAYS.items():
                    scores[way].asked += 1
                    sql = await write(llm, question, engine)
                    scores[way].found.update(outcome(sql, engine, right))
                engine.close()
    return scores


def main() -> None:
    """Print a row of each set and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mini")
    parser.add_argument("--questions", type=int, default=60, help="of each set; Chinook has 20")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    options = parser.parse_args()
    print("| set | way | asked | " + " | ".join(SHOWN) + " |\n" + "|---" * (3 + len(SHOWN)) + "|")
    for name in options.sets:
        for way, score in asyncio.run(measure(name, options.model, options.questions)).items():
            cells = " | ".join(str(score.found[word]) for word in SHOWN)
            print(f"| {name} | {way} | {score.asked} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
