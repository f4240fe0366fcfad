"""Search and ingestion from Python and the command line: indexes of this machine, models loaded here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.config.settings import Settings
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_call
from headrace.inference.local_handler import LocalHandler
from headrace.inference.loop_thread import LoopThread
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.loading.loader import load_model
from headrace.loading.options import engine_options
from headrace.search.embedding import CHUNK_TOKENS, IndexModel
from headrace.search.index import IndexMeta, Mode
from headrace.search.indexes import indexes_of
from headrace.search.ingest import FoundFiles, Ingestion, IngestReport, Progress, ingest_files
from headrace.search.local_index import LocalIndex
from headrace.search.readers.document_reader import DocumentReader
from headrace.search.searching import NamedHit, SearchRequest, search
from headrace.search.where import Value, read_where
from headrace.telemetry.request_metrics import ModelMetrics
from headrace.weights.head import TaskName

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

EMBEDDER = "embed"
"""The shipped model, which indexes are made by unless another is named."""
Loading = Callable[[str], None]


class SearchClient:
    """Loads a model with its first use, and keeps it until `close`."""

    def __init__(self, settings: Settings, loading: Loading = lambda name: None) -> None:
        """`loading` is called with the name of a model before it is loaded."""
        self.indexes = indexes_of(settings)
        self._loop = LoopThread()
        self._models = _ModelsHere(settings, loading)
        self._threads = ModelThreads(1)
        self._handler = LocalHandler(self._models, self._threads)
        self._runner = ModelRunner(self._handler, self._models, self._threads)

    def search(
        self,
        text: str,
        names: Sequence[str] | None = None,
        *,
        where: str | None = None,
        limit: int = 10,
        rerank: str | None = None,
        keywords: Sequence[str] = (),
        mode: Mode = "hybrid",
    ) -> list[NamedHit]:
        """The best chunks for a text, of the indexes of these names (None: all). `where` is a condition on
        attributes, `rerank` the name of a reranker.

        Raises IndexMissing where a name has no index, or there is none at all, and InvalidRequest.
        """
        request = SearchRequest(
            text=text,
            limit=limit,
            mode=mode,
            where=None if where is None else read_where(where),
            keywords=tuple(keywords),
            rerank=rerank,
        )
        found = self.indexes.find_all(names)
        return self._loop.run(search(found, request, self._runner, new_call()))

    def ingest(
        self,
        files: FoundFiles,
        into: str,
        *,
        model: str | None = None,
        chunk_tokens: int | None = None,
        attributes: Mapping[str, Value] | None = None,
        progress: Progress = lambda done, total: None,
    ) -> IngestReport:
        """Bring the index of that name up to date with files; it is made where there is none. Model and size
        of chunks are those of the index where they are not given."""
        index = self._index(into, model, chunk_tokens)
        name = index.meta().model or EMBEDDER
        ingestion = Ingestion(index, IndexModel(self._runner, name), new_call())
        reader = DocumentReader()
        try:
            known = list(index.digests())
            report = self._loop.run(ingest_files(ingestion, files, reader, known, attributes or {}, progress))
        finally:
            reader.close()
        index.maintain()
        return report

    def nearest(self, text: str, others: Sequence[str], name: str = EMBEDDER) -> list[int]:
        """The places of texts, those nearest to `text` first, by the vectors of the model of that name."""
        call, model = new_call(), IndexModel(self._runner, name)
        [query] = self._loop.run(model.vectors([text], call, "query", ["the text"]))
        names = [f"text {place}" for place in range(len(others))]
        vectors = self._loop.run(model.vectors(others, call, "document", names))
        return [int(place) for place in np.argsort(-(vectors @ query), kind="stable")] if others else []

    def close(self) -> None:
        """Unload the models."""
        self._handler.close()
        self._models.close()
        self._loop.close()
        self._threads.close()

    def _index(self, name: str, model: str | None, chunk_tokens: int | None) -> LocalIndex:
        there = name in self.indexes.names()
        meta = (
            self.indexes.find(name).meta() if there else IndexMeta(model=EMBEDDER, chunk_tokens=CHUNK_TOKENS)
        )
        return self.indexes.find_or_make(
            name, IndexMeta(model=model or meta.model, chunk_tokens=chunk_tokens or meta.chunk_tokens)
        )

    def __enter__(self) -> SearchClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ModelsHere:
    """A `ModelSource` that loads models by their names and keeps them."""

    def __init__(self, settings: Settings, loading: Loading) -> None:
        self._settings, self._loading = settings, loading
        self._loaded: dict[str, OneModel] = {}
        self._lock = asyncio.Lock()

    async def acquire(
        self, name: str | None, keep_alive_s: float | None, call: CallContext
    ) -> tuple[LoadedModel, Callable[[], None]]:
        name = name or EMBEDDER
        async with self._lock:
            if name not in self._loaded:
                self._loaded[name] = OneModel(await asyncio.to_thread(self._load, name))
        return await self._loaded[name].acquire(name, keep_alive_s, call)

    def metrics(self, model: LoadedModel) -> ModelMetrics:
        return next(one for one in self._loaded.values() if one.model is model).metrics(model)

    def encoders(self) -> str:
        return "name one that does"

    def able(self, *tasks: TaskName) -> str | None:
        return next((name for name, one in self._loaded.items() if one.able(*tasks)), None)

    def close(self) -> None:
        for one in self._loaded.values():
            one.model.close()
        self._loaded.clear()

    def _load(self, name: str) -> LoadedModel:
        self._loading(name)
        return load_model(name, engine_options(self._settings))
