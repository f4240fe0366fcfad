"""What is read of files and records before it is in an index."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.search.where import Value

READING = 1
"""Of the readers and of chunking: a change of it has every document read again."""


class DocumentFailed(InvalidRequest):
    """A document cannot be read: it is damaged, encrypted, empty, or larger than it may be."""

    remedy = "Correct the document that the message names, or leave it out; others are read."
    code = "document_failed"


class SearchDocument(Struct, frozen=True, kw_only=True):
    """A text with its key (a path, an id), title and attributes."""

    key: str
    text: str
    title: str = ""
    attributes: Mapping[str, Value] = {}
    digest: bytes = b""


def digest_of(content: bytes | str, attributes: Mapping[str, Value], made_by: tuple[object, ...]) -> bytes:
    """What tells that a document, and how it becomes chunks, is as it was."""
    data = content.encode() if isinstance(content, str) else content
    rest = msgspec.json.encode((READING, sorted(attributes.items()), made_by))
    return hashlib.sha256(hashlib.sha256(data).digest() + rest).digest()[:16]
