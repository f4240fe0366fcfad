"""BM25 over the terms of an index in Qdrant, to the last bit as FTS5 of SQLite computes it.

Qdrant finds chunks by sparse vectors whose weights are those of BM25 for a mean length that was fixed when
the index was begun. So its score is off by at most the ratio of the present mean to that one: what may be
among the best by it is fetched, with how often each has the terms, and scored here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from qdrant_client import models

from headrace.errors import InvalidRequest
from headrace.search.index import IndexDamaged
from headrace.search.phrases import MAX_CANDIDATES, Phrases, phrase_among, postings_of, weight_of
from headrace.search.qdrant.records import Snapshot, id_of, one_of, visible

SPARSE = "words"
MAX_MATCHES = 200_000
"""Chunks that are fetched for one query."""
_MORE = 64
_ROUNDING = 1e-5
"""Of float32, in a sum of up to some hundred numbers that are not negative."""
_IDS = 4096


class TextWords(Struct, frozen=True):
    """How often a text has each term, by its key, and how many words it has."""

    counts: dict[str, int]
    words: int

    def sparse(self, reference: float) -> models.SparseVector:
        """BM25 without the rarity of terms, where chunks have `reference` words in the mean."""
        weights: dict[int, float] = {}
        for key, count in self.counts.items():
            weights[_place(key)] = weights.get(_place(key), 0.0) + _frequency(count, self.words, reference)
        return models.SparseVector(indices=list(weights), values=list(weights.values()))


class _Row(Struct, frozen=True):
    words: int
    tf: dict[str, int] = {}


class _Text(Struct, frozen=True):
    text: str


def words_in(texts: Sequence[str]) -> list[TextWords]:
    """The terms of each text."""
    postings, sizes = postings_of(texts)
    counts: list[dict[str, int]] = [{} for _ in texts]
    for term, places, often in postings:
        for place, count in zip(places, often, strict=True):
            counts[place][_key(term)] = count
    return [TextWords(*pair) for pair in zip(counts, sizes, strict=True)]


def found_phrase(snapshot: Snapshot, phrase: Sequence[str]) -> dict[int, int]:
    """How often each chunk has a phrase of several terms."""
    terms = [one_of("terms", _key(term)) for term in sorted(set(phrase))]
    found = snapshot.chunks(["text"], *terms, most=MAX_CANDIDATES + 1)
    return phrase_among(phrase, {id_of(one): msgspec.convert(one.payload, _Text).text for one in found})


def by_words(
    snapshot: Snapshot, phrases: Phrases, condition: models.Filter | None, depth: int
) -> dict[int, float]:
    """Ids with their BM25 (larger is better), best first, equal ones by id."""
    needed = _needed(phrases)
    if needed is None or not snapshot.meta.words:
        return {}
    search = _Search(snapshot, phrases, [*needed, *([] if condition is None else [condition])])
    found = search.of_phrases()
    found |= search.of_terms(found, depth)
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:depth])


def with_all(snapshot: Snapshot, phrases: Phrases, ids: Sequence[int]) -> list[int]:
    """Those ids whose chunks have all phrases that are needed."""
    needed = _all_of(phrases)
    if needed is None:
        return []
    found = {
        id_of(one)
        for start in range(0, len(ids), _IDS)
        for one in snapshot.chunks([], models.HasIdCondition(has_id=list(ids[start : start + _IDS])), *needed)
    }
    return [one for one in ids if one in found]


class _Search:
    """One query: the weights of its phrases, and what a chunk must have."""

    def __init__(self, snapshot: Snapshot, phrases: Phrases, needed: list[models.Condition]) -> None:
        self._snapshot, self._phrases, self._needed = snapshot, phrases, needed
        self._keys = {phrase: _key(term) for phrase, term in phrases.terms.items()}
        chunks = snapshot.meta.chunks
        rarity = {key: self._count(key) for key in set(self._keys.values())}
        counts = {phrase: rarity[key] for phrase, key in self._keys.items()}
        counts |= {phrase: len(found) for phrase, found in phrases.known.items()}
        self._weights = {phrase: weight_of(count, chunks) for phrase, count in sorted(counts.items())}
        self._mean = snapshot.meta.words / chunks
        self._fields = ["words", *(f"tf.{key}" for key in sorted(rarity))]

    def of_phrases(self) -> dict[int, float]:
        """The scores of all chunks that have any phrase of several terms."""
        ids = sorted({number for found in self._phrases.known.values() for number in found})
        scores: dict[int, float] = {}
        for start in range(0, len(ids), _IDS):
            some = models.HasIdCondition(has_id=list(ids[start : start + _IDS]))
            scores |= self._scored(self._snapshot.chunks(self._fields, some, *self._needed))
        return scores

    def of_terms(self, known: Mapping[int, float], depth: int) -> dict[int, float]:
        """The scores of chunks among which the best `depth` are for certain, with those of `known`."""
        if not self._keys:
            return {}
        ratio = max(1.0, self._mean / self._snapshot.meta.reference) * (1 + _ROUNDING)
        limit = depth + _MORE
        while True:
            found = self._nearest(limit)
            scores = self._scored(found)
            best = sorted({**known, **scores}.values(), reverse=True)
            if len(found) < limit or (len(best) >= depth and found[-1].score * ratio < best[depth - 1]):
                return scores
            if limit > MAX_MATCHES:
                raise InvalidRequest(
                    f"more than {MAX_MATCHES:,} passages have words of the search, too many to be compared:"
                    " search for rarer words, or narrow it by `where`",
                    param="text",
                )
            limit *= 4

    def _nearest(self, limit: int) -> list[models.ScoredPoint]:
        weights: dict[int, float] = {}
        for phrase, key in self._keys.items():
            weights[_place(key)] = weights.get(_place(key), 0.0) + self._weights[phrase]
        found = self._snapshot.client.query_points(
            self._snapshot.meta.within,
            query=models.SparseVector(indices=list(weights), values=list(weights.values())),
            using=SPARSE,
            query_filter=visible(self._snapshot.meta, *self._needed),
            limit=limit,
            with_payload=self._fields,
        ).points[:limit]
        return sorted(found, key=lambda one: -one.score)

    def _scored(self, found: Iterable[models.Record | models.ScoredPoint]) -> dict[int, float]:
        scores: dict[int, float] = {}
        for one in found:
            number, row = id_of(one), msgspec.convert(one.payload, _Row)
            score = 0.0
            for phrase, weight in self._weights.items():
                key = self._keys.get(phrase)
                count = self._phrases.known[phrase].get(number, 0) if key is None else row.tf.get(key, 0)
                if count:
                    score += weight * _frequency(count, row.words, self._mean)
            if score:
                scores[number] = score
        return scores

    def _count(self, key: str) -> int:
        meta = self._snapshot.meta
        chosen = visible(meta, one_of("terms", key))
        found = self._snapshot.client.count(meta.within, chosen, exact=True).count
        if not 0 <= found <= meta.chunks:
            raise IndexDamaged(
                f"{found:,} of the {meta.chunks:,} passages of the index {self._snapshot.name} have a word:"
                " delete the index and ingest again"
            )
        return found


def _needed(phrases: Phrases) -> list[models.Condition] | None:
    """What every chunk has that is found; None where none can be."""
    needed = _all_of(phrases)
    if needed is None or not phrases.any:
        return needed
    keys = sorted({_key(term) for phrase, term in phrases.terms.items() if phrase < phrases.any})
    ids = sorted({one for phrase, found in phrases.known.items() if phrase < phrases.any for one in found})
    ways: list[models.Condition] = [one_of("terms", *keys)] if keys else []
    if ids:
        ways.append(models.HasIdCondition(has_id=list(ids)))
    return [*needed, models.Filter(should=ways)] if ways else None


def _all_of(phrases: Phrases) -> list[models.Condition] | None:
    """That a chunk has all phrases that are needed; None where one has no terms, or no chunk has it."""
    needed = list[models.Condition]()
    for phrase in range(phrases.any, phrases.any + phrases.all):
        term, known = phrases.terms.get(phrase), phrases.known.get(phrase)
        if term is not None:
            needed.append(one_of("terms", _key(term)))
        elif known:
            needed.append(models.HasIdCondition(has_id=list(known)))
        else:
            return None
    return needed


def _frequency(count: int, words: int, mean: float) -> float:
    """What a term counts in a text, with the constants of FTS5: k1 = 1.2, b = 0.75."""
    return (count * 2.2) / (count + 1.2 * (0.25 + 0.75 * words / mean))


def _key(term: str) -> str:
    """By which a term is found: fields of a point have names of letters and digits."""
    return "t" + hashlib.blake2b(term.encode(), digest_size=8).hexdigest()


def _place(key: str) -> int:
    """Of a term in sparse vectors. Terms that share one are told apart when they are scored."""
    return int(key[1:9], 16)
