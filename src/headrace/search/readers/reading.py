"""What goes to the process of readers and comes back."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

MAX_CHARACTERS = 16_000_000
"""Of the text of a document."""
MAX_PAGES = 5000
MAX_UNPACKED = 512 * 2**20
"""Bytes that the parts of a compressed document may have together."""


class ReadJob(Struct, frozen=True):
    """Bytes of a document, and the kind of reader for them."""

    kind: str
    data: bytes


class DocumentText(Struct, frozen=True):
    """A document as text, Markdown where it has structure; `pages` are where its pages begin."""

    text: str
    title: str = ""
    pages: tuple[int, ...] = ()
    failure: str | None = None
    """Why there is no text, instead of it."""


class Unreadable(Exception):
    """The document cannot be read, and why."""


Read = Callable[[bytes], DocumentText]


class DocumentKind(Struct, frozen=True):
    """A kind of document: how names of files end, how it is read, and libraries of an extra that it needs."""

    suffixes: tuple[str, ...]
    read: Read
    extra: str = ""
    libraries: tuple[str, ...] = ()


encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(ReadJob).decode
decode_text = msgspec.msgpack.Decoder(DocumentText).decode


def decoded(data: bytes) -> str:
    """Text in UTF-8, or UTF-16 with its mark; Unreadable for anything else."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is no text in UTF-8 (byte {error.start:,}): convert it") from None
    if "\x00" in text:
        raise Unreadable("it is binary: it has NUL characters")
    return text.replace("\r\n", "\n").replace("\r", "\n")
