"""The kinds of documents: each is a file of this folder."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import PurePath

from headrace.search.readers.reading import DocumentKind

KINDS = ("text", "markdown", "html", "pdf", "office")


@cache
def reader_of(kind: str) -> DocumentKind:
    """The reader of that kind."""
    return importlib.import_module(f"headrace.search.readers.{kind}").READER


@cache
def _by_suffix() -> dict[str, str]:
    return {suffix: kind for kind in KINDS for suffix in reader_of(kind).suffixes}


def kind_of(name: str) -> str | None:
    """The kind of a file by the end of its name; None where that says nothing."""
    return _by_suffix().get(PurePath(name).suffix.lower())
