"""Search and ingestion from Python and the command line: indexes of this machine, models loaded here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from headrace.config.settings import Settings
from headrace.errors import InvalidRequest
from headrace.inference.keywords import new_call
from headrace.inference.local_models import LocalModels
from headrace.inference.model_runner import ModelRunner
from headrace.loading.options import engine_options
from headrace.search.documents import SearchDocument
from headrace.search.embedding import CHUNK_TOKENS, IndexModel
from headrace.search.index import Index, IndexMeta, Mode
from headrace.search.indexes import indexes_of
from headrace.search.ingest import (
    FoundFiles,
    Ingestion,
    IngestReport,
    Progress,
    ingest_documents,
    ingest_files,
)
from headrace.search.readers.document_reader import DocumentReader
from headrace.search.searching import NamedHit, SearchRequest, search
from headrace.search.where import Value, read_where

EMBEDDER = "embed"
"""The shipped model, which indexes are made by unless another is named."""
Loading = Callable[[str], None]
T = TypeVar("T")


class RunsModels(Protocol):
    """Models, and the loop that they live on."""

    @property
    def runner(self) -> ModelRunner:
        """Lives on the loop of `run`."""
        ...

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on that loop and wait for it, from another thread."""
        ...


class SearchClient:
    """Loads a model with its first use, and keeps it until `close`."""

    def __init__(
        self,
        settings: Settings,
        loading: Loading = lambda name: None,
        *,
        models: RunsModels | None = None,
    ) -> None:
        """`loading` is called with the name of a model before it is loaded. Given `models` stay the caller's
        to close."""
        self.indexes = indexes_of(settings)
        self.warnings: list[str] = []
        """Of the last search."""
        self._own: LocalModels | None = None
        if models is None:
            models = self._own = LocalModels(
                default=EMBEDDER,
                options=engine_options(settings),
                loading=lambda name: loading(name or EMBEDDER),
            )
        self._models = models
        self._runner = self._models.runner

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
        found, call = self.indexes.find_all(names), new_call()
        hits = self._models.run(search(found, request, self._runner, call))
        self.warnings = [f"{one.param}: {one.message}" for one in call.warnings]
        return hits

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
            report = self._models.run(
                ingest_files(ingestion, files, reader, known, attributes or {}, progress)
            )
        finally:
            reader.close()
        index.maintain()
        return report

    def ingest_documents(
        self,
        documents: Iterator[SearchDocument],
        into: str,
        *,
        model: str | None = None,
        chunk_tokens: int | None = None,
        source: Mapping[str, str],
        total: int,
        progress: Progress = lambda done, total: None,
    ) -> IngestReport:
        """Bring the index of that name up to date with all documents of a `source`, which is kept with it:
        those that are not among them are removed. InvalidRequest where it was made of something else."""
        index = self._index(into, model, chunk_tokens, source)
        if index.meta().details != source:
            raise InvalidRequest(
                f"the index {into} was made of other documents, which this would remove: delete it, or use"
                " another name",
                param="into",
            )
        name = index.meta().model or EMBEDDER
        ingestion = Ingestion(index, IndexModel(self._runner, name), new_call())
        known = list(index.digests())
        report = self._models.run(ingest_documents(ingestion, documents, known, total, progress))
        index.maintain()
        return report

    def nearest(self, text: str, others: Sequence[str], name: str = EMBEDDER) -> list[int]:
        """The places of texts, those nearest to `text` first, by the vectors of the model of that name."""
        call, model = new_call(), IndexModel(self._runner, name)
        [query] = self._models.run(model.vectors([text], call, "query", ["the text"]))
        names = [f"text {place}" for place in range(len(others))]
        vectors = self._models.run(model.vectors(others, call, "document", names))
        return [int(place) for place in np.argsort(-(vectors @ query), kind="stable")] if others else []

    def close(self) -> None:
        """Unload the models that were loaded for this."""
        self.indexes.close()
        if self._own is not None:
            self._own.close()

    def _index(
        self,
        name: str,
        model: str | None,
        chunk_tokens: int | None,
        details: Mapping[str, object] | None = None,
    ) -> Index:
        there = self.indexes.has(name)
        meta = (
            self.indexes.find(name).meta() if there else IndexMeta(model=EMBEDDER, chunk_tokens=CHUNK_TOKENS)
        )
        return self.indexes.find_or_make(
            name,
            IndexMeta(
                model=model or meta.model,
                chunk_tokens=chunk_tokens or meta.chunk_tokens,
                details=details or {},
            ),
        )

    def __enter__(self) -> SearchClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
