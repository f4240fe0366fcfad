"""BM25 over the terms of an index in PostgreSQL, to the last bit as FTS5 of SQLite computes it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.search.postgres.pool import Connection
from headrace.search.postgres.tables import unshielded
from headrace.search.postgres.where import Sql
from headrace.search.terms import phrase_counts, term_counts, terms_of
from headrace.search.words import WordQuery

MAX_CANDIDATES = 10_000
"""Chunks with all terms of a phrase, which are read to see whether these follow one another."""
_LEAST_WEIGHT = 1e-6  # of a phrase that half of all chunks have
_TOGETHER = 65_536  # places of a row of postings after maintenance

# OFFSET 0: each term is looked up by itself, also before PostgreSQL knows how many rows there are.
_SEEN = """
WITH seen AS MATERIALIZED (
    SELECT t.phrase, p.first + u.place AS id, u.count
    FROM unnest(%(terms)s::text[], %(numbers)s::int[]) AS t (term, phrase)
    CROSS JOIN LATERAL (SELECT * FROM postings WHERE term = t.term COLLATE "C" OFFSET 0) AS p
    CROSS JOIN LATERAL unnest(p.places, p.counts) AS u (place, count)
    UNION ALL SELECT * FROM unnest(%(phrases)s::int[], %(ids)s::bigint[], %(counts)s::int[])
)
"""
_RARITY_OF_ALL = """
    SELECT t.phrase, sum(cardinality(p.places))::bigint
    FROM unnest(%(terms)s::text[], %(numbers)s::int[]) AS t (term, phrase)
    CROSS JOIN LATERAL (SELECT * FROM postings WHERE term = t.term COLLATE "C" OFFSET 0) AS p
    GROUP BY t.phrase
    UNION ALL SELECT phrase, count(*) FROM unnest(%(phrases)s::int[]) AS known (phrase) GROUP BY phrase
"""
"""Where every chunk that has a term is there."""
_RARITY = _SEEN + "SELECT s.phrase, count(*) FROM seen s JOIN chunks c ON c.id = s.id GROUP BY s.phrase"
# The constants of FTS5: k1 = 1.2, b = 0.75.
_SCORE = """
    sum(w.weight * ((s.count * 2.2::float8) / (s.count + 1.2::float8
        * (0.25::float8 + 0.75::float8 * c.words / %(mean)s::float8))) ORDER BY s.phrase)
"""
_HAS_ALL = """
    (%(any)s::int = 0 OR count(*) FILTER (WHERE s.phrase < %(any)s::int) > 0)
    AND count(*) FILTER (WHERE s.phrase >= %(any)s::int) = %(all)s::int
"""


class Phrases(Struct, frozen=True):
    """What is looked for, by the numbers of phrases: those below `any` are of a text that has any of them,
    the others are all needed. A phrase of one term is looked up, of another the chunks are known."""

    any: int
    all: int
    terms: dict[int, str]
    known: dict[int, dict[int, int]]

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the statements."""
        known = [(phrase, *pair) for phrase, found in self.known.items() for pair in found.items()]
        return {
            "terms": list(self.terms.values()),
            "numbers": list(self.terms),
            "phrases": [phrase for phrase, _, _ in known],
            "ids": [number for _, number, _ in known],
            "counts": [count for _, _, count in known],
            "any": self.any,
            "all": self.all,
        }


def phrases_of(connection: Connection, query: WordQuery) -> Phrases | None:
    """The phrases of a query; None where there is none."""
    if not query.any_of and not query.all_of:
        return None
    terms, known = dict[int, str](), dict[int, dict[int, int]]()
    for number, phrase in enumerate(terms_of([*query.any_of, *query.all_of])):
        if len(phrase) == 1:
            terms[number] = phrase[0]
        elif phrase:
            known[number] = _found_phrase(connection, phrase)
    return Phrases(len(query.any_of), len(query.all_of), terms, known)


def _found_phrase(connection: Connection, phrase: Sequence[str]) -> dict[int, int]:
    different = sorted(set(phrase))
    rows = connection.execute(
        b"SELECT c.id, c.text FROM ("
        b" SELECT p.first + u.place AS id FROM postings p, unnest(p.places, p.counts) AS u (place, count)"
        b" WHERE p.term = ANY (%s::text[]) GROUP BY 1 HAVING count(*) = %s) s"
        b" JOIN chunks c ON c.id = s.id LIMIT %s",
        (different, len(different), MAX_CANDIDATES + 1),
    ).fetchall()
    if len(rows) > MAX_CANDIDATES:
        raise InvalidRequest(
            f"more than {MAX_CANDIDATES:,} passages have all words of {' '.join(phrase)[:80]!r}, too many to"
            " look for where these follow one another: search for fewer words together",
            param="text",
        )
    return phrase_counts(phrase, {number: unshielded(text) for number, text in rows})


def by_words(
    connection: Connection, phrases: Phrases, filtered: Sql | None, meta: Mapping[str, Any], depth: int
) -> dict[int, float]:
    """Ids with their BM25 (larger is better), best first, equal ones by id."""
    chunks, words = meta["chunks"], meta["words"]
    given = phrases.parameters
    rarity_of = _RARITY if meta["dead"] else _RARITY_OF_ALL
    rarity = dict(connection.execute(rarity_of.encode(), given).fetchall())
    if not rarity or not words:
        return {}
    weights = {phrase: math.log((chunks - count + 0.5) / (count + 0.5)) for phrase, count in rarity.items()}
    given |= {
        "weighted": list(weights),
        "weights": [one if one > 0 else _LEAST_WEIGHT for one in weights.values()],
        "mean": words / chunks,
        "depth": depth,
    }
    source, condition = "seen s JOIN chunks c ON c.id = s.id", ""
    if filtered is not None:
        source += " JOIN documents d ON d.number = c.document"
        condition = f"WHERE {_named(filtered, given)}"
    sql = (
        f"{_SEEN} SELECT c.id, {_SCORE} AS score FROM {source}"
        " JOIN unnest(%(weighted)s::int[], %(weights)s::float8[]) AS w (phrase, weight)"
        " ON w.phrase = s.phrase"
        f" {condition} GROUP BY c.id HAVING {_HAS_ALL} ORDER BY score DESC, c.id LIMIT %(depth)s"
    )
    return dict(connection.execute(sql.encode(), given).fetchall())


def with_all(connection: Connection, phrases: Phrases, ids: Sequence[int]) -> list[int]:
    """Those ids whose chunks have all phrases that are needed."""
    sql = (
        f"{_SEEN} SELECT s.id FROM seen s WHERE s.id = ANY (%(some)s::bigint[]) AND s.phrase >= %(any)s::int"
        " GROUP BY s.id HAVING count(*) = %(all)s::int"
    )
    found = {
        number for (number,) in connection.execute(sql.encode(), phrases.parameters | {"some": list(ids)})
    }
    return [one for one in ids if one in found]


def postings_of(texts: Sequence[str]) -> tuple[list[tuple[str, list[int], list[int]]], list[int]]:
    """Each term with the places of texts that have it and how often; and how many words each text has."""
    rows, sizes = list[tuple[str, list[int], list[int]]](), [0] * len(texts)
    for term, group in itertools.groupby(term_counts(texts), key=lambda row: row[0]):
        pairs = [(place, count) for _, place, count in group]
        rows.append((term, [place for place, _ in pairs], [count for _, count in pairs]))
        for place, count in pairs:
            sizes[place] += count
    return rows, sizes


def merge_postings(connection: Connection) -> None:
    """Write all postings anew, without those of chunks that are gone."""
    connection.execute(
        f"""
        WITH old AS (DELETE FROM postings RETURNING term, first, places, counts),
        live AS (
            SELECT o.term, c.id, u.count FROM old o
            CROSS JOIN LATERAL unnest(o.places, o.counts) AS u (place, count)
            JOIN chunks c ON c.id = o.first + u.place
        )
        INSERT INTO postings
        SELECT term, id / {_TOGETHER} * {_TOGETHER}, array_agg((id %% {_TOGETHER})::int ORDER BY id),
            array_agg(count ORDER BY id)
        FROM live GROUP BY term, id / {_TOGETHER}
        """.encode(),
        (),
    )


def _named(filtered: Sql, given: dict[str, Any]) -> str:
    """The condition with names in the places of its values, which are added to `given`."""
    sql, values = filtered
    names: Iterable[str] = (f"value{number}" for number in range(len(values)))
    named = dict(zip(names, values, strict=True))
    given |= named
    for name in named:
        sql = sql.replace("%s", f"%({name})s", 1)
    return sql
