"""An index of three texts for tests of servers."""

from __future__ import annotations

from headrace.engine.client import LoadedModel
from headrace.inference.keywords import new_call
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.search.documents import SearchDocument
from headrace.search.embedding import IndexModel
from headrace.search.index import Index
from headrace.search.ingest import Ingestion

TEXTS = {
    "apples": ("red apples grow on trees", {"color": "red", "price": 3}),
    "plums": ("blue plums are sweet", {"color": "blue", "price": 5, "ripe": True}),
    "lemons": ("yellow lemons are sour", {"color": "yellow", "price": 2, "ripe": False}),
}


async def fill(index: Index, model: LoadedModel) -> None:
    with ModelThreads(1) as threads:
        source = OneModel(model)
        handler = LocalHandler(source, threads)
        ingestion = Ingestion(
            index, IndexModel(ModelRunner(handler, source, threads), "embedder"), new_call()
        )
        for key, (text, attributes) in TEXTS.items():
            await ingestion.add(SearchDocument(key=key, text=text, attributes=attributes))
        await ingestion.flush()
        handler.close()
