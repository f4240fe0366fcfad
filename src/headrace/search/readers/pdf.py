"""PDF: the text of its pages."""

from __future__ import annotations

import importlib
import io
from typing import Any

from headrace.search.readers.reading import (
    MAX_CHARACTERS,
    MAX_PAGES,
    DocumentKind,
    DocumentText,
    Unreadable,
)


def _read(data: bytes) -> DocumentText:
    pypdf: Any = importlib.import_module("pypdf")
    document = pypdf.PdfReader(io.BytesIO(data))
    if document.is_encrypted and not document.decrypt(""):
        raise Unreadable("it is encrypted: remove its password, or leave it out")
    count = len(document.pages)
    if count > MAX_PAGES:
        raise Unreadable(f"it has {count:,} pages, at most {MAX_PAGES:,} are read: split it")
    parts, starts, length = list[str](), list[int](), 0
    for page in document.pages:
        part: str = page.extract_text().replace("\x00", "").replace("\f", "\n") + "\f"
        starts.append(length)
        parts.append(part)
        length += len(part)
        if length > MAX_CHARACTERS:
            raise Unreadable(f"it has more than {MAX_CHARACTERS:,} characters: split it")
    text = "".join(parts)
    if not text.strip():
        raise Unreadable("it has no text: pages are pictures, which are not read")
    info = document.metadata
    return DocumentText(text, str((info and info.title) or "").strip(), tuple(starts))


READER = DocumentKind((".pdf",), _read, "search", ("pypdf",))
