"""Rows of an index whose vectors tell their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.search.index import Index, IndexMeta, IndexQuery, IndexRow, TextSpan
from headrace.search.local_index import LocalIndex

SIZE = 24


def vector_of(text: str) -> np.ndarray:
    """A direction that is the text's own."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(SIZE)
    return (vector / np.sqrt((vector * vector).sum())).astype(np.float32)


def row(key: str, *texts: str, **attributes: Any) -> IndexRow:
    spans, at = [], 0
    for text in texts:
        spans.append(TextSpan(at, at + len(text)))
        at += len(text) + 1
    vectors = np.stack([vector_of(text) for text in texts]) if texts else None
    digest = hashlib.sha256(repr(texts).encode()).digest()
    return IndexRow(
        key=key, digest=digest, attributes=attributes, spans=tuple(spans), texts=texts, vectors=vectors
    )


def new_index(folder: Path, **more: Any) -> LocalIndex:
    return LocalIndex.make(folder, IndexMeta(model="m", chunk_tokens=64, **more))


def by_vector(index: Index, text: str, limit: int = 5, **more: Any) -> list[tuple[str, str]]:
    found = index.query(IndexQuery(vector=vector_of(text), limit=limit, **more))
    return [(hit.key, hit.text) for hit in found.hits]


def by_words(index: Index, text: str, limit: int = 5, **more: Any) -> list[tuple[str, str]]:
    return [(hit.key, hit.text) for hit in index.query(IndexQuery(text=text, limit=limit, **more)).hits]


def check_whole(index: Index, documents: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Texts, words and vectors of the index are these documents', and nothing else is found."""
    chunks = [(key, text) for key, texts in documents for text in texts]
    assert sorted(index.digests()) == sorted(key for key, _ in documents)
    version = index.version()
    assert (version.documents, version.chunks) == (len(documents), len(chunks))
    for key, texts in documents:
        assert [text for _, text in index.chunks_of(key)] == list(texts)
        assert all((vector == vector_of(text)).all() for text, vector in index.vectors_of(key).items())
    for key, text in chunks:
        found = index.query(IndexQuery(vector=vector_of(text), text=text, limit=10)).hits
        best = next(hit for hit in found if (hit.key, hit.text) == (key, text))
        assert best.vector_score is not None
        assert abs(best.vector_score - 1) < 1e-5
        assert best.bm25_rank is not None
    everything = index.query(IndexQuery(vector=vector_of("x"), limit=1000)).hits
    assert len(everything) == min(len(chunks), 1000)
