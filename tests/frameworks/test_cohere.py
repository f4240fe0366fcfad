"""The cohere package: rerank, embed and classify, of both versions of the API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from in_process import Running
from vectors import DOCUMENTS, QUERY, expected_ranking, expected_vectors, same

from headrace.tasks.vector_types import as_type

cohere = pytest.importorskip("cohere", reason="make test-frameworks installs it")


@pytest.fixture(params=["Client", "ClientV2"])
def client(request: pytest.FixtureRequest, encoders: Running) -> Any:
    return getattr(cohere, request.param)(api_key="none", base_url=encoders.url)


def test_rerank(client: Any, encoders: Running) -> None:
    found = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [one.index for one in found.results] == [index for index, _ in expected_ranking(encoders)[:2]]
    assert found.results[0].relevance_score == pytest.approx(expected_ranking(encoders)[0][1])
    assert found.meta.billed_units.search_units == 1 and found.meta.api_version.version in ("1", "2")


def test_embeddings_of_all_types(client: Any, encoders: Running) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary"]
    reply = client.embed(texts=DOCUMENTS, model="embedder", input_type="search_query", embedding_types=types)
    expected = expected_vectors(encoders, *(f"q: {text}" for text in DOCUMENTS))
    assert same(reply.embeddings.float_, expected)
    for kind in ("int8", "uint8", "binary", "ubinary"):
        assert np.array_equal(getattr(reply.embeddings, kind), as_type(expected, kind))
    assert reply.texts == DOCUMENTS and reply.meta.billed_units.input_tokens > 10


def test_embeddings_without_types(encoders: Running) -> None:
    client = cohere.Client(api_key="none", base_url=encoders.url)
    reply = client.embed(texts=DOCUMENTS, model="embedder", input_type="search_document", truncate="END")
    assert same(reply.embeddings, expected_vectors(encoders, *(f"p: {text}" for text in DOCUMENTS)))


def test_v2_has_dimensions_and_limits(encoders: Running) -> None:
    client = cohere.ClientV2(api_key="none", base_url=encoders.url)
    asked = {"model": "embedder", "input_type": "classification", "embedding_types": ["float"]}
    reply = client.embed(texts=["abcdef"], max_tokens=4, output_dimension=8, truncate="START", **asked)
    assert len(reply.embeddings.float_[0]) == 8
    assert any("max_tokens" in text for text in reply.meta.warnings)
    with pytest.raises(cohere.BadRequestError):
        client.embed(texts=["abcdef"], max_tokens=4, **asked)


def test_classify(encoders: Running) -> None:
    client = cohere.Client(api_key="none", base_url=encoders.url)
    whole = client.classify(model="classifier", inputs=DOCUMENTS)
    assert [one.input for one in whole.classifications] == DOCUMENTS
    assert set(whole.classifications[0].labels) == {"low", "mid", "high"}
    known = {"aaa": "x", "bab": "x", "zzz": "y", "yzy": "y"}
    examples = [cohere.ClassifyExample(text=text, label=label) for text, label in known.items()]
    few = client.classify(inputs=["aab", "zzy"], examples=examples)
    assert [one.prediction for one in few.classifications] == ["x", "y"]


def test_an_unknown_model_is_a_not_found_error(client: Any) -> None:
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="nobody", query=QUERY, documents=DOCUMENTS)
