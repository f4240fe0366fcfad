"""The voyageai package: embeddings of all types, and rerank."""

from __future__ import annotations

import numpy as np
import pytest
from in_process import Running
from vectors import DOCUMENTS, QUERY, expected_ranking, expected_vectors, same

from headrace.tasks.vector_types import as_type

voyageai = pytest.importorskip("voyageai", reason="make test-frameworks installs it")


def test_embeddings_of_all_types(encoders: Running) -> None:
    client = voyageai.Client(api_key="none", base_url=encoders.url + "/v1", timeout=20)
    expected = expected_vectors(encoders, *(f"q: {text}" for text in DOCUMENTS))
    whole = client.embed(DOCUMENTS, model="embedder", input_type="query")
    assert same(whole.embeddings, expected) and whole.total_tokens > 10
    for kind in ("int8", "uint8", "binary", "ubinary"):
        found = client.embed(DOCUMENTS, model="embedder", input_type="query", output_dtype=kind)
        assert np.array_equal(found.embeddings, as_type(expected, kind))
    assert len(client.embed([QUERY], model="embedder", output_dimension=8).embeddings[0]) == 8


def test_rerank(encoders: Running) -> None:
    client = voyageai.Client(api_key="none", base_url=encoders.url + "/v1", timeout=20)
    found = client.rerank(QUERY, DOCUMENTS, model="reranker", top_k=2)
    expected = expected_ranking(encoders)[:2]
    assert [one.index for one in found.results] == [index for index, _ in expected]
    assert [one.relevance_score for one in found.results] == pytest.approx([score for _, score in expected])
