"""BM25 over the terms of an index in PostgreSQL, to the last bit as FTS5 of SQLite computes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.search.phrases import MAX_CANDIDATES, Phrases, phrase_among, weight_of
from headrace.search.postgres.pool import Connection
from headrace.search.postgres.tables import unshielded
from headrace.search.postgres.where import Sql

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


def found_phrase(connection: Connection, phrase: Sequence[str]) -> dict[int, int]:
    """How often each chunk has a phrase of several terms."""
    different = sorted(set(phrase))
    rows = connection.execute(
        b"SELECT c.id, c.text FROM ("
        b" SELECT p.first + u.place AS id FROM postings p, unnest(p.places, p.counts) AS u (place, count)"
        b" WHERE p.term = ANY (%s::text[]) GROUP BY 1 HAVING count(*) = %s) s"
        b" JOIN chunks c ON c.id = s.id LIMIT %s",
        (different, len(different), MAX_CANDIDATES + 1),
    ).fetchall()
    return phrase_among(phrase, {number: unshielded(text) for number, text in rows})


def _parameters(phrases: Phrases) -> dict[str, Any]:
    """Those of the statements."""
    known = [(phrase, *pair) for phrase, found in phrases.known.items() for pair in found.items()]
    return {
        "terms": list(phrases.terms.values()),
        "numbers": list(phrases.terms),
        "phrases": [phrase for phrase, _, _ in known],
        "ids": [number for _, number, _ in known],
        "counts": [count for _, _, count in known],
        "any": phrases.any,
        "all": phrases.all,
    }


def by_words(
    connection: Connection, phrases: Phrases, filtered: Sql | None, meta: Mapping[str, Any], depth: int
) -> dict[int, float]:
    """Ids with their BM25 (larger is better), best first, equal ones by id."""
    chunks, words = meta["chunks"], meta["words"]
    given = _parameters(phrases)
    rarity_of = _RARITY if meta["dead"] else _RARITY_OF_ALL
    rarity = dict(connection.execute(rarity_of.encode(), given).fetchall())
    if not rarity or not words:
        return {}
    given |= {
        "weighted": list(rarity),
        "weights": [weight_of(count, chunks) for count in rarity.values()],
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
        number for (number,) in connection.execute(sql.encode(), _parameters(phrases) | {"some": list(ids)})
    }
    return [one for one in ids if one in found]


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
