"""Retrievers of LangChain and LlamaIndex over /v1/search."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from in_process import Running, server_of
from search_fixture import TEXTS, fill

from encoder_models import load_encoders
from headrace.search.index import IndexMeta
from headrace.search.indexes import Indexes

REASON = "make test-frameworks installs it"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("search")
    with ExitStack() as held:
        [model] = load_encoders(folder / "models", held, "embedder")
        meta = IndexMeta(model="embedder", chunk_tokens=32)
        asyncio.run(fill(Indexes(folder / "search").find_or_make("fruit", meta), model))
        yield held.enter_context(server_of(model, store=folder / "store.sqlite3"))


def hits(url: str, text: str) -> list[dict[str, Any]]:
    reply = httpx.post(f"{url}/v1/search", json={"text": text, "datasets": ["fruit"]}, trust_env=False)
    return reply.raise_for_status().json()["results"]


def test_langchain(searched: Running) -> None:
    pytest.importorskip("langchain_core", reason=REASON)
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    class Search(BaseRetriever):
        url: str

        def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
            found = hits(self.url, query)
            return [
                Document(one["matches"]["text"], metadata=one["primary_key"] | one["data"]) for one in found
            ]

    found = Search(url=searched.url).invoke("sour lemons")
    assert found[0].page_content == TEXTS["lemons"][0]
    assert found[0].metadata["key"] == "lemons"
    assert found[0].metadata["price"] == 2


def test_llama_index(searched: Running) -> None:
    pytest.importorskip("llama_index.core", reason=REASON)
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    class Search(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            found = hits(searched.url, query_bundle.query_str)
            return [
                NodeWithScore(
                    node=TextNode(text=one["matches"]["text"], metadata=one["data"]), score=one["_score"]
                )
                for one in found
            ]

    found = Search().retrieve("sour lemons")
    assert found[0].get_content() == TEXTS["lemons"][0]
    assert found[0].score > found[1].score
