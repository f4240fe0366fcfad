"""Markdown, as it is: its headings tell where it is cut."""

from __future__ import annotations

import re

from headrace.search.readers.reading import DocumentKind, DocumentText, decoded

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_TITLE = re.compile(r"^#{1,2} +([^ \n].*)$", re.MULTILINE)


def _read(data: bytes) -> DocumentText:
    text = decoded(data)
    body = _FRONT_MATTER.sub(lambda found: "\n" * found[0].count("\n"), text, count=1)
    found = _TITLE.search(body)
    return DocumentText(body, found[1].rstrip(" #").strip() if found else "")


READER = DocumentKind((".md", ".markdown", ".mdx", ".qmd"), _read)
