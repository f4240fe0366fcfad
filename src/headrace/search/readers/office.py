"""Documents of office programs: Word, PowerPoint, Excel."""

from __future__ import annotations

import importlib
import io
import zipfile
from typing import Any

from headrace.search.readers.reading import MAX_UNPACKED, DocumentKind, DocumentText, Unreadable

MAX_PARTS = 20_000


def _read(data: bytes) -> DocumentText:
    _check_size(data)
    markitdown: Any = importlib.import_module("markitdown")
    converter = markitdown.MarkItDown(enable_plugins=False)
    found = converter.convert_stream(io.BytesIO(data))
    if not found.text_content.strip():
        raise Unreadable("it has no text")
    return DocumentText(found.text_content, str(found.title or ""))


def _check_size(data: bytes) -> None:
    """Unreadable for an archive whose parts are too many or too large, as they say; the process has a limit
    of memory for those that lie."""
    try:
        parts = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise Unreadable(f"it is no document of an office program ({error}), or it is encrypted") from None
    size = sum(part.file_size for part in parts)
    if size > MAX_UNPACKED or len(parts) > MAX_PARTS:
        raise Unreadable(
            f"its {len(parts):,} parts unpack to {size:,} bytes, at most {MAX_UNPACKED:,} are read"
        )
    if any(part.flag_bits & 1 for part in parts):
        raise Unreadable("it is encrypted: remove its password, or leave it out")


READER = DocumentKind((".docx", ".pptx", ".xlsx"), _read, "office", ("markitdown",))
