"""What the tests of clients compare with: vectors and scores as they are without a client."""

from __future__ import annotations

from typing import Any

import numpy as np
from in_process import Running

from headrace.engine.unit_rows import unit_rows

QUERY, DOCUMENTS = "cat", ["a cat", "dogs run", "the sea"]


def expected_vectors(server: Running, *texts: str) -> np.ndarray:
    """The vectors of texts, which the embedder makes of length 1."""
    reply = server.http().post("/embed", json={"model": "embedder", "inputs": list(texts)})
    return unit_rows(np.array(reply.json(), np.float32))


def expected_ranking(server: Running) -> list[tuple[int, float]]:
    """Indices and scores of DOCUMENTS, best first."""
    body = {"model": "reranker", "query": QUERY, "texts": DOCUMENTS}
    return [(one["index"], one["score"]) for one in server.http().post("/rerank", json=body).json()]


def same(found: Any, expected: np.ndarray) -> bool:
    """Whether vectors are the same, up to what JSON and float32 lose."""
    return np.allclose(unit_rows(np.array(found, np.float32)), expected, atol=1e-5)
