"""What the words of a query are looked for by, and what they weigh, in stores that have no FTS5."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.search.terms import phrase_counts, term_counts, terms_of
from headrace.search.words import WordQuery

MAX_CANDIDATES = 10_000
"""Chunks with all terms of a phrase, which are read to see whether these follow one another."""
_LEAST_WEIGHT = 1e-6  # of a phrase that half of all chunks have


class Phrases(Struct, frozen=True):
    """What is looked for, by the numbers of phrases: those below `any` are of a text that has any of them,
    the others are all needed. A phrase of one term is looked up, of another the chunks are known, and how
    often each has it."""

    any: int
    all: int
    terms: dict[int, str]
    known: dict[int, dict[int, int]]


def phrases_of(query: WordQuery, find: Callable[[Sequence[str]], dict[int, int]]) -> Phrases | None:
    """The phrases of a query; None where there is none. `find` finds one of several terms."""
    if not query.any_of and not query.all_of:
        return None
    terms, known = dict[int, str](), dict[int, dict[int, int]]()
    for number, phrase in enumerate(terms_of([*query.any_of, *query.all_of])):
        if len(phrase) == 1:
            terms[number] = phrase[0]
        elif phrase:
            known[number] = find(phrase)
    return Phrases(len(query.any_of), len(query.all_of), terms, known)


def phrase_among(phrase: Sequence[str], texts: Mapping[int, str]) -> dict[int, int]:
    """How often each of the texts with all terms of a phrase has it; InvalidRequest where they are more than
    MAX_CANDIDATES."""
    if len(texts) > MAX_CANDIDATES:
        raise InvalidRequest(
            f"more than {MAX_CANDIDATES:,} passages have all words of {' '.join(phrase)[:80]!r}, too many to"
            " look for where these follow one another: search for fewer words together",
            param="text",
        )
    return phrase_counts(phrase, texts)


def weight_of(count: int, chunks: int) -> float:
    """What a phrase weighs that `count` of all chunks have, as in FTS5."""
    weight = math.log((chunks - count + 0.5) / (count + 0.5))
    return weight if weight > 0 else _LEAST_WEIGHT


def postings_of(texts: Sequence[str]) -> tuple[list[tuple[str, list[int], list[int]]], list[int]]:
    """Each term with the places of texts that have it and how often; and how many words each text has."""
    rows, sizes = list[tuple[str, list[int], list[int]]](), [0] * len(texts)
    for term, group in itertools.groupby(term_counts(texts), key=lambda row: row[0]):
        pairs = [(place, count) for _, place, count in group]
        rows.append((term, [place for place, _ in pairs], [count for _, count in pairs]))
        for place, count in pairs:
            sizes[place] += count
    return rows, sizes
