"""Web pages: their main text as Markdown, without menus and the like."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.search.readers.reading import DocumentKind, DocumentText, Unreadable, decoded

MAX_BYTES = 20 * 2**20


def _read(data: bytes) -> DocumentText:
    trafilatura: Any = importlib.import_module("trafilatura")
    if len(data) > MAX_BYTES:
        raise Unreadable(f"the page has {len(data):,} bytes, at most {MAX_BYTES:,} are read")
    try:
        page: str | bytes = decoded(data)
    except Unreadable:
        page = data  # it may say its encoding
    tree = trafilatura.load_html(page)
    if tree is None:
        raise Unreadable("it is no page of HTML")
    titled = tree.find(".//title")
    title = "" if titled is None else " ".join(titled.text_content().split())
    text = trafilatura.extract(
        tree, output_format="markdown", include_tables=True, include_comments=False, favor_recall=True
    )
    if not text:
        raise Unreadable("no text was found in the page")
    return DocumentText(text, title)


READER = DocumentKind((".html", ".htm", ".xhtml"), _read, "search", ("trafilatura",))
