"""A dataset's texts in an index: what has changed since is embedded and written, what is gone is removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headrace.config.datasets import DatasetIndex, index_of
from headrace.data.engine import DataEngine
from headrace.data.source import quoted
from headrace.errors import InvalidRequest
from headrace.search.client import SearchClient
from headrace.search.documents import SearchDocument
from headrace.search.ingest import IngestReport, Progress
from headrace.search.where import Value

PAGE_ROWS = 10_000
BETWEEN = "\n\n"


def index_dataset(
    engine: DataEngine,
    client: SearchClient,
    name: str,
    progress: Progress = lambda done, total: None,
) -> IngestReport:
    """Bring the index of a dataset up to date; it has the dataset's name, and is made where there is none.

    Rows are read in the order of their keys, a page at a time. InvalidRequest where the settings name no
    index, and for keys that are there twice.
    """
    dataset = engine.catalogue.find(name, ruled=False)
    found = index_of(dataset.settings, f"datasets.{name}")
    if found is None:
        raise InvalidRequest(
            f"the dataset {name!r} has no index: set [datasets.{name}.index] with text and key",
            param="dataset",
        )
    counts = f"SELECT count(*) AS n, count({quoted(found.key)}) AS keys FROM {quoted(name)}"
    [counted] = _rows(engine, counts)
    if counted["n"] != counted["keys"]:
        raise _wrong(name, f"{counted['n'] - counted['keys']:,} rows have no {found.key}")
    return client.ingest_documents(
        _documents(engine, name, found),
        name,
        model=found.model,
        chunk_tokens=found.chunk,
        source={"dataset": name},
        total=int(counted["n"]),
        progress=progress,
    )


def _documents(engine: DataEngine, name: str, index: DatasetIndex) -> Iterator[SearchDocument]:
    key = f"CAST({quoted(index.key)} AS VARCHAR)"
    texts = [f"CAST({quoted(one)} AS VARCHAR) AS __text_{number}" for number, one in enumerate(index.text)]
    title = [f"CAST({quoted(index.title)} AS VARCHAR) AS __title"] if index.title is not None else []
    columns = ", ".join([f"{key} AS __key", *texts, *title, *map(quoted, index.attributes)])
    page = max(2, min(PAGE_ROWS, engine.limits.everyone.rows))
    last: str | None = None
    while True:
        # The last one comes again, so that another with its key is seen.
        after = "" if last is None else f" WHERE {key} >= $1"
        sql = f"SELECT {columns} FROM {quoted(name)}{after} ORDER BY __key LIMIT {page}"
        rows = _rows(engine, sql, [] if last is None else [last])
        for row in rows if last is None or not rows or rows[0]["__key"] != last else rows[1:]:
            if row["__key"] == last:
                raise _wrong(name, f"the key {str(last)[:80]!r} of {index.key} is there twice")
            last = str(row["__key"])
            yield _document(row, index)
        if len(rows) < page:
            return


def _wrong(name: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        f"datasets.{name}.index: {cause}: name a column that tells all rows apart", param="key"
    )


def _rows(engine: DataEngine, sql: str, parameters: Sequence[str] = ()) -> list[dict[str, Any]]:
    answer = engine.sql(sql, parameters, format="json", ruled=False)
    return msgspec.json.decode(answer.body, type=list[dict[str, Any]])


def _document(row: Mapping[str, Any], index: DatasetIndex) -> SearchDocument:
    parts = [row[f"__text_{number}"] for number in range(len(index.text))]
    attributes = {name: _attribute(row[name]) for name in index.attributes if row[name] is not None}
    return SearchDocument(
        key=str(row["__key"]),
        text=BETWEEN.join(part for part in parts if part),
        title=str(row.get("__title") or ""),
        attributes=attributes,
    )


def _attribute(value: object) -> Value:
    return value if isinstance(value, bool | int | float | str) else str(value)
