"""From documents to an index: what has changed is cut, embedded and written; what is gone is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from headrace.errors import HeadraceError, UsageError
from headrace.inference.call_context import CallContext
from headrace.search.documents import DocumentFailed, SearchDocument, digest_of
from headrace.search.embedding import IndexModel
from headrace.search.index import Index, IndexRow, TextSpan
from headrace.search.readers.document_reader import MAX_BYTES, DocumentReader
from headrace.search.readers.kinds import kind_of
from headrace.search.where import Value, is_unicode

Progress = Callable[[int, int], None]
Change = Literal["added", "changed", "same", "empty"]
TOGETHER = 256
"""Chunks, at least, that become visible together."""


class IngestReport(Struct):
    """What became of documents; `failed` says of those that could not be read why."""

    added: int = 0
    changed: int = 0
    same: int = 0
    removed: int = 0
    chunks: int = 0
    failed: dict[str, str] = field(default_factory=dict[str, str])
    skipped: int = 0
    """Files in folders whose names do not say that they are text, or that are links to files elsewhere."""


class SourceFile(Struct, frozen=True):
    """A file to ingest, and the key that its document has."""

    key: str
    path: Path


class FoundFiles(Struct, frozen=True):
    """Files in order, folders of them by the beginning of their keys, and how many others there are."""

    files: tuple[SourceFile, ...]
    folders: tuple[str, ...]
    skipped: int


def find_files(paths: Sequence[Path]) -> FoundFiles:
    """The files of paths. In folders hidden ones are left out, those of no known kind, and links to folders
    or to files elsewhere: a folder from a stranger would have files read that are not in it. UsageError for a
    path that is not there."""
    files: dict[str, SourceFile] = {}
    folders: list[str] = []
    skipped = 0
    for path in paths:
        if path.is_file():
            files[path.as_posix()] = SourceFile(path.as_posix(), path)
            continue
        if not path.is_dir():
            raise UsageError(f"{path} is no file and no folder: name what is to be ingested")
        folders.append("" if path == Path() else path.as_posix().rstrip("/") + "/")
        for one in _below(path):
            if kind_of(one.name) is None or _leads_out(one, path):
                skipped += 1
            else:
                files[one.as_posix()] = SourceFile(one.as_posix(), one)
    return FoundFiles(tuple(files[key] for key in sorted(files)), tuple(folders), skipped)


def _below(folder: Path) -> Iterator[Path]:
    for one in sorted(folder.iterdir()):
        if one.name.startswith("."):
            continue
        if one.is_dir() and not one.is_symlink():
            yield from _below(one)
        elif one.is_file():
            yield one


def _leads_out(file: Path, folder: Path) -> bool:
    return file.is_symlink() and not file.resolve().is_relative_to(folder.resolve())


class Ingestion:
    """Adds documents to an index by a model, in portions that become visible together."""

    def __init__(
        self, index: Index, model: IndexModel, call: CallContext, chunk_tokens: int | None = None
    ) -> None:
        """`chunk_tokens` are those of the index where they are not given."""
        self._index, self._model, self._call = index, model, call
        self._tokens = chunk_tokens or index.meta().chunk_tokens
        self._rows: list[IndexRow] = []
        self.report = IngestReport()
        self._known = index.digests()

    @property
    def made_by(self) -> tuple[object, ...]:
        """What besides its content decides how a document is indexed."""
        return (self._model.name, self._tokens)

    def is_known(self, key: str, digest: bytes) -> bool:
        """Whether a document is in the index as it is, which is counted."""
        known = self._known.get(key) == digest
        self.report.same += known
        return known

    async def add(self, document: SearchDocument) -> None:
        """Index one document; it is visible after `flush`, or earlier."""
        [spans] = await self._model.split([document.text], self._tokens, self._call)
        texts = [document.text[span.start : span.end] for span in spans]
        if document.key in self._known:
            self.report.changed += 1
        else:
            self.report.added += 1
        self.report.chunks += len(texts)
        await self._embed(document, spans, texts)
        if sum(len(row.texts) for row in self._rows) >= TOGETHER:
            await self.flush()

    async def _embed(self, document: SearchDocument, spans: Sequence[TextSpan], texts: Sequence[str]) -> None:
        kept = {}
        if document.key in self._known:
            kept = await asyncio.to_thread(self._index.vectors_of, document.key)
        new = [text for text in dict.fromkeys(texts) if text not in kept]
        made = await self._model.vectors(new, self._call, "document", [document.key] * len(new))
        vectors = {**kept, **dict(zip(new, made, strict=True))}
        self._rows.append(
            IndexRow(
                key=document.key,
                digest=document.digest,
                title=document.title,
                attributes=document.attributes,
                spans=tuple(spans),
                texts=tuple(texts),
                vectors=np.stack([vectors[text] for text in texts]) if texts else None,
            )
        )

    async def flush(self) -> None:
        """Make what was added visible."""
        rows, self._rows = self._rows, []
        if rows:
            await asyncio.to_thread(self._index.upsert, rows)

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove documents."""
        if keys:
            self.report.removed += await asyncio.to_thread(self._index.delete, keys)


async def ingest_files(
    ingestion: Ingestion,
    found: FoundFiles,
    reader: DocumentReader,
    known: Sequence[str],
    attributes: Mapping[str, Value],
    progress: Progress,
) -> IngestReport:
    """Bring an index up to date with files: documents of folders whose file is gone are removed. `known` are
    the keys of the index. A file that cannot be read is reported, and what was indexed of it stays."""
    report = ingestion.report
    report.skipped = found.skipped
    for done, file in enumerate(found.files):
        progress(done, len(found.files))
        if not is_unicode(file.key):
            shown = file.key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            report.failed[shown] = f"the name of {shown} is no UTF-8: rename it"
            continue
        try:
            document = await asyncio.to_thread(_read, ingestion, file, reader, attributes)
            if document is not None:
                await ingestion.add(document)
        except (DocumentFailed, OSError) as error:
            report.failed[file.key] = error.message if isinstance(error, HeadraceError) else str(error)
    await ingestion.flush()
    here = {file.key for file in found.files}
    gone = [key for key in known if key not in here and _is_below(key, found.folders)]
    await ingestion.remove(gone)
    progress(len(found.files), len(found.files))
    return report


async def ingest_documents(
    ingestion: Ingestion,
    documents: Iterator[SearchDocument],
    known: Sequence[str],
    total: int,
    progress: Progress,
) -> IngestReport:
    """Bring an index up to date with all documents that there are: others are removed. `documents` may wait
    for what they are read from."""
    here: set[str] = set()
    while (document := await asyncio.to_thread(next, documents, None)) is not None:
        progress(min(len(here), total), total)
        here.add(document.key)
        digest = digest_of(f"{document.title}\0{document.text}", document.attributes, ingestion.made_by)
        if not ingestion.is_known(document.key, digest):
            await ingestion.add(replace(document, digest=digest))
    await ingestion.flush()
    await ingestion.remove([key for key in known if key not in here])
    progress(total, total)
    return ingestion.report


def _is_below(key: str, folders: Sequence[str]) -> bool:
    return any(key.startswith(folder) and not (folder == "" and key.startswith("/")) for folder in folders)


def _read(
    ingestion: Ingestion, file: SourceFile, reader: DocumentReader, attributes: Mapping[str, Value]
) -> SearchDocument | None:
    """A file's document; None where the index has it."""
    with file.path.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    given = {
        "path": file.key,
        "name": file.path.name,
        "kind": kind_of(file.path.name) or "text",
        **attributes,
    }
    digest = digest_of(data, given, ingestion.made_by)
    if ingestion.is_known(file.key, digest):
        return None
    text = reader.read(file.key, data)
    return SearchDocument(key=file.key, text=text.text, title=text.title, attributes=given, digest=digest)
