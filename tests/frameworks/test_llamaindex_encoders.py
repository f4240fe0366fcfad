"""LlamaIndex's embeddings and rerankers."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import Running
from vectors import DOCUMENTS, QUERY, expected_ranking, expected_vectors, same

REASON = "make test-frameworks installs it"
schema = pytest.importorskip("llama_index.core.schema", reason=REASON)


def check_embeddings(model: Any, server: Running, query: str = "", document: str = "") -> None:
    """`query` and `document` are the prompts that the model's client asks for."""
    found = model.get_text_embedding_batch(DOCUMENTS)
    assert same(found, expected_vectors(server, *(document + text for text in DOCUMENTS)))
    assert same([model.get_query_embedding(QUERY)], expected_vectors(server, query + QUERY))


def check_ranking(reranker: Any, server: Running) -> None:
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text)) for text in DOCUMENTS]
    found = reranker.postprocess_nodes(nodes, query_str=QUERY)
    expected = expected_ranking(server)[: len(found)]
    assert found and [one.node.text for one in found] == [DOCUMENTS[index] for index, _ in expected]
    assert [one.score for one in found] == pytest.approx([score for _, score in expected])


def test_openai_like_embedding(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.embeddings.openai_like", reason=REASON)
    model = package.OpenAILikeEmbedding(
        model_name="embedder", api_base=encoders.url + "/v1", api_key="none", max_retries=0
    )
    check_embeddings(model, encoders)


def test_text_embeddings_inference(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.embeddings.text_embeddings_inference", reason=REASON)
    model = package.TextEmbeddingsInference(model_name="embedder", base_url=encoders.url)
    check_embeddings(model, encoders)


def test_cohere_embedding(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.embeddings.cohere", reason=REASON)
    for kind in ("float", "int8", "ubinary"):
        model = package.CohereEmbedding(
            model_name="embed-english-v3.0", api_key="none", base_url=encoders.url, embedding_type=kind
        )
        model.model_name = "embedder"
        assert len(model.get_text_embedding(QUERY)) == (32 if kind != "ubinary" else 4)
        if kind == "float":
            check_embeddings(model, encoders)  # it sends input_type for names that it knows only


def test_jina_embedding(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.embeddings.jinaai", reason=REASON)

    def made(**options: str) -> Any:
        model = package.JinaEmbedding(api_key="none", model="embedder", **options)
        model._api.api_url = encoders.url + "/v1/embeddings"  # it has no parameter for it
        return model

    check_embeddings(made(), encoders)
    passages = made(task="retrieval.passage")
    assert same([passages.get_text_embedding(QUERY)], expected_vectors(encoders, f"p: {QUERY}"))
    bits = (expected_vectors(encoders, QUERY)[0] > 0).astype(int).tolist()
    for kind in ("binary", "ubinary"):
        assert made(encoding_documents=kind).get_text_embedding(QUERY) == bits


def test_cohere_rerank(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.postprocessor.cohere_rerank", reason=REASON)
    reranker = package.CohereRerank(top_n=2, model="reranker", api_key="none", base_url=encoders.url)
    check_ranking(reranker, encoders)


def test_jina_rerank(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.postprocessor.jinaai_rerank", reason=REASON)
    reranker = package.JinaRerank(top_n=2, model="reranker", api_key="none", base_url=encoders.url + "/v1")
    check_ranking(reranker, encoders)


def test_text_embeddings_inference_rerank(encoders: Running) -> None:
    package = pytest.importorskip("llama_index.postprocessor.tei_rerank", reason=REASON)
    check_ranking(package.TextEmbeddingInference(top_n=2, base_url=encoders.url), encoders)
