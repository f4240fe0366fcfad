"""Which tables a model reads for a question in words, where all are too much of its context."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.search.terms import terms_of
from headrace.search.words import words_of

CONTEXT_SHARE = 8
"""Tables take at most this part of a model's context; the rest is for question, statement and repair."""
CHARACTERS_PER_TOKEN = 3
"""Of names of tables and columns, on the safe side."""
NAME_WEIGHT = 2.0
"""A word of a table's name says more than one of its columns'."""
LEAST_SCORE = 0.5
"""Of a table that is shown, as a part of the best one's: each further table makes a small model worse."""
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")

Tables = Mapping[str, Sequence[str]]
"""Columns by table."""


def tables_for(question: str, tables: Tables, context_length: int | None) -> dict[str, list[str]]:
    """The tables that a model with so many tokens of context is shown, in their order: all where they fit or
    nothing is known of the context, else those whose words the question has, best first, while they fit.

    The best one is always there. Words are compared by their stems, and count the more the fewer tables have
    them (schema linking by words). `bench/data/text_to_sql.py` measures what it is worth.
    """
    most = math.inf if context_length is None else context_length / CONTEXT_SHARE * CHARACTERS_PER_TOKEN
    if len(tables) < 2 or sum(map(_length, tables.items())) <= most:
        return {name: list(columns) for name, columns in tables.items()}
    scores = _scores(question, tables)
    ranked = sorted(tables, key=lambda name: -scores[name])
    chosen, used = {ranked[0]}, _length((ranked[0], tables[ranked[0]]))
    for name in ranked[1:]:
        used += _length((name, tables[name]))
        if used > most or scores[name] < LEAST_SCORE * scores[ranked[0]]:
            break
        chosen.add(name)
    return {name: list(columns) for name, columns in tables.items() if name in chosen}


def _length(table: tuple[str, Sequence[str]]) -> int:
    name, columns = table
    return len(name) + sum(len(column) + 2 for column in columns)


def _scores(question: str, tables: Tables) -> dict[str, float]:
    """Of each table: the weights of the question's words in its name, of which a whole name counts most, and
    in its columns."""
    names, columns = list(tables), [" ".join(map(_words, tables[name])) for name in tables]
    asked, *found = terms_of([" ".join(words_of(question).any_of), *map(_words, names), *columns])
    of_names = [frozenset(terms) for terms in found[: len(names)]]
    of_columns = [frozenset(terms) for terms in found[len(names) :]]
    counts = Counter(
        term for name, column in zip(of_names, of_columns, strict=True) for term in name | column
    )
    weights = {term: math.log(1 + len(names) / counts[term]) for term in asked if counts[term]}
    scores: dict[str, float] = {}
    for name, own, cells in zip(names, of_names, of_columns, strict=True):
        share = len(own & weights.keys()) / max(1, len(own))
        scores[name] = NAME_WEIGHT * share * sum(weights[term] for term in own & weights.keys())
        scores[name] += sum(weights[term] for term in cells & weights.keys())
    return scores


def _words(name: str) -> str:
    """The words of a name: `InvoiceLine` and `invoice_line` have two."""
    return " ".join(_PARTS.findall(name))
