"""The terms of texts as FTS5 makes them, for stores that keep the words of an index themselves."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager

from headrace.search.tables import TOKENIZER

MAX_TERM = 256
"""Bytes of a term that is kept; of a longer one its digest is."""


def term_counts(texts: Sequence[str]) -> list[tuple[str, int, int]]:
    """Each term with the place of a text that has it and how often, in the order of terms and places."""
    with _tokenized(texts) as connection:
        rows = connection.execute(
            "SELECT term, doc, count(*) FROM seen GROUP BY term, doc ORDER BY term, doc"
        )
        return [(_kept(term), doc, count) for term, doc, count in rows]


def terms_of(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """The terms of each text in order."""
    found: dict[int, list[str]] = {}
    with _tokenized(texts) as connection:
        for term, doc in connection.execute("SELECT term, doc FROM seen ORDER BY doc, offset"):
            found.setdefault(doc, []).append(_kept(term))
    return [tuple(found.get(place, ())) for place in range(len(texts))]


def phrase_counts(phrase: Sequence[str], texts: Mapping[int, str]) -> dict[int, int]:
    """How often each of some texts has the terms of a phrase one after another; those that have it."""
    numbers = list(texts)
    found: dict[int, int] = {}
    for number, terms in zip(numbers, terms_of([texts[one] for one in numbers]), strict=True):
        places = range(len(terms) - len(phrase) + 1)
        count = sum(terms[place : place + len(phrase)] == tuple(phrase) for place in places)
        if count:
            found[number] = count
    return found


@contextmanager
def _tokenized(texts: Sequence[str]) -> Generator[sqlite3.Connection]:
    """A connection with the table `seen` of all terms: term, doc, offset."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        options = f"text, content = '', tokenize = '{TOKENIZER}'"
        connection.execute(f"CREATE VIRTUAL TABLE words USING fts5 ({options})")
        connection.execute("CREATE VIRTUAL TABLE seen USING fts5vocab (words, instance)")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(texts))
        yield connection


def _kept(term: str) -> str:
    """A term, or where it is long what stands for it: no term has a #."""
    data = term.encode()
    return term if len(data) <= MAX_TERM else f"#{hashlib.sha256(data).hexdigest()}"
