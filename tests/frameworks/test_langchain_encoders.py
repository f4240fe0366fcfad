"""LangChain's embeddings and rerankers."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import Running
from vectors import DOCUMENTS, QUERY, expected_ranking, expected_vectors, same

REASON = "make test-frameworks installs it"
documents = pytest.importorskip("langchain_core.documents", reason=REASON)


def check_embeddings(model: Any, server: Running, query: str = "", document: str = "") -> None:
    """`query` and `document` are the prompts that the model's client asks for."""
    assert same(
        model.embed_documents(DOCUMENTS), expected_vectors(server, *(document + text for text in DOCUMENTS))
    )
    assert same([model.embed_query(QUERY)], expected_vectors(server, query + QUERY))


def check_ranking(compressor: Any, server: Running) -> None:
    given = [documents.Document(page_content=text) for text in DOCUMENTS]
    found = compressor.compress_documents(given, QUERY)
    expected = expected_ranking(server)[: len(found)]
    assert [one.page_content for one in found] == [DOCUMENTS[index] for index, _ in expected]
    assert [one.metadata["relevance_score"] for one in found] == pytest.approx(
        [score for _, score in expected]
    )


def test_openai_embeddings(encoders: Running) -> None:
    package = pytest.importorskip("langchain_openai", reason=REASON)
    model = package.OpenAIEmbeddings(
        model="embedder", base_url=encoders.url + "/v1", api_key="none", check_embedding_ctx_length=False
    )
    check_embeddings(model, encoders)


def test_cohere_embeddings(encoders: Running) -> None:
    package = pytest.importorskip("langchain_cohere", reason=REASON)
    model = package.CohereEmbeddings(model="embedder", cohere_api_key="none", base_url=encoders.url)
    check_embeddings(model, encoders, "q: ", "p: ")


def test_cohere_rerank(encoders: Running) -> None:
    package = pytest.importorskip("langchain_cohere", reason=REASON)
    model = package.CohereRerank(model="reranker", cohere_api_key="none", base_url=encoders.url, top_n=2)
    check_ranking(model, encoders)


def test_hugging_face_endpoint_embeddings(encoders: Running) -> None:
    package = pytest.importorskip("langchain_huggingface", reason=REASON)
    hub = pytest.importorskip("huggingface_hub", reason=REASON)
    model = package.HuggingFaceEndpointEmbeddings(model="a/b", huggingfacehub_api_token="none")
    model.client = hub.InferenceClient(model=encoders.url, token="none")  # a URL is refused as a model
    check_embeddings(model, encoders)


def test_jina_embeddings_and_rerank(encoders: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = pytest.importorskip("langchain_community.embeddings.jina", reason=REASON)
    compressors = pytest.importorskip("langchain_community.document_compressors.jina_rerank", reason=REASON)
    monkeypatch.setattr(embeddings, "JINA_API_URL", encoders.url + "/v1/embeddings")
    monkeypatch.setattr(compressors, "JINA_API_URL", encoders.url + "/v1/rerank")
    model = embeddings.JinaEmbeddings(model_name="embedder", jina_api_key="none", session=None)
    check_embeddings(model, encoders)
    check_ranking(compressors.JinaRerank(model="reranker", jina_api_key="none", top_n=2), encoders)
