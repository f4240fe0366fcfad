"""The bytes of a journal file: a header, then records, each with its length and checksum.

A record is length, checksum, kind, number and tag in 25 bytes, then its payload. The checksum covers all of
them, so that a reader takes the records up to the first damaged byte, and none after it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from zlib import crc32

from msgspec import Struct

from headrace.config.extras import extra_module
from headrace.errors import HeadraceError, UsageError

MAGIC = b"headrace-journal"
VERSION = 1
_FILE = struct.Struct("<16sBB10sI")
_RECORD = struct.Struct("<IIBQQ")
FILE_BYTES, RECORD_BYTES = _FILE.size, _RECORD.size
_CHECKED_FROM = 8  # after length and checksum
MAX_PAYLOAD = 256 * 2**20
NONCE_BYTES = 12
MAX_NUMBER = 2**63
"""Numbers of requests are lower: there is always a next one."""


class JournalDamaged(HeadraceError):
    """A file of the journal has another content than was written."""

    remedy = "The records before the damage are used; see `headrace doctor`."


class Cipher(Protocol):
    """Encrypts the payloads of records."""

    key_id: bytes

    def seal(self, payload: bytes, bound: bytes) -> bytes:
        """The encrypted payload, which opens only together with `bound`."""
        ...

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        """The payload; JournalDamaged where it was sealed otherwise."""
        ...


def read_cipher(key_file: Path | None) -> Cipher | None:
    """The cipher of a key file, which has at least 16 bytes; None without one. UsageError, ExtraMissing."""
    if key_file is None:
        return None
    try:
        secret = key_file.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"journal.key_file: {key_file} cannot be read: {error.strerror}") from None
    if len(secret) < 16:
        raise UsageError(
            f"journal.key_file: {key_file} has {len(secret)} bytes, at least 16 random ones are needed: "
            "make one with `openssl rand -hex 32`"
        )
    return extra_module("gateway", "headrace.journal.sealing", "cryptography").SealingCipher(secret)


class Columns:
    """The records of a file by place: where they begin, and their kind, number and tag."""

    __slots__ = ("at", "kind", "number", "tag")

    def __init__(self) -> None:
        self.at, self.kind, self.number, self.tag = array("Q"), array("B"), array("Q"), array("Q")

    def add(self, at: int, kind: int, number: int, tag: int) -> None:
        """One more record."""
        self.at.append(at)
        self.kind.append(kind)
        self.number.append(number)
        self.tag.append(tag)

    def __len__(self) -> int:
        return len(self.at)


class Scan(Struct, frozen=True):
    """The longest good prefix of a file: its records, and where it ends. `problem` says what follows it."""

    columns: Columns
    end: int
    problem: str | None
    is_sealed: bool = False
    key_id: bytes = b""


def file_header(cipher: Cipher | None) -> bytes:
    """The first bytes of a file."""
    key_id = b"\0" * 10 if cipher is None else cipher.key_id
    fields = _FILE.pack(MAGIC, VERSION, cipher is not None, key_id, 0)[:-4]
    return fields + crc32(fields).to_bytes(4, "little")


def record(kind: int, number: int, tag: int, payload: bytes, cipher: Cipher | None = None) -> bytes:
    """A record as it is written."""
    if cipher is not None:
        payload = cipher.seal(payload, struct.pack("<BQQ", kind, number, tag))
    head = _RECORD.pack(len(payload), 0, kind, number, tag)
    found = crc32(payload, crc32(head[_CHECKED_FROM:], len(payload)))
    return _RECORD.pack(len(payload), found, kind, number, tag) + payload


def payload_at(data: bytes | memoryview, at: int, cipher: Cipher | None) -> bytes:
    """The payload of the record that begins at `at`. JournalDamaged."""
    view = memoryview(data)
    if at + RECORD_BYTES > len(view):
        raise JournalDamaged(f"the record at byte {at:,} is cut off")
    length, wanted, kind, number, tag = _RECORD.unpack_from(view, at)
    end = at + RECORD_BYTES + length
    if end > len(view) or _sum(view, at, end, length) != wanted:
        raise JournalDamaged(f"the record at byte {at:,} does not match its checksum")
    payload = bytes(view[at + RECORD_BYTES : end])
    return payload if cipher is None else cipher.open(payload, struct.pack("<BQQ", kind, number, tag))


def body_bytes(head: bytes | memoryview) -> int:
    """The length of a record's payload, by its first bytes."""
    return int.from_bytes(head[:4], "little")


def names_of(head: bytes | memoryview) -> tuple[int, int, int] | None:
    """Kind, number and tag of a record, by its first bytes; None where these are cut off."""
    return _RECORD.unpack_from(head)[2:] if len(head) >= RECORD_BYTES else None


def scan(data: bytes | memoryview) -> Scan:
    """The records of a file up to the first that is damaged or cut off. UsageError where another
    release has written it, and nothing is wrong."""
    columns, view = Columns(), memoryview(data)
    if len(view) < FILE_BYTES:
        return Scan(columns, 0, "the header is cut off" if len(view) else None)
    magic, version, sealed, key_id, wanted = _FILE.unpack_from(view)
    if magic != MAGIC or wanted != crc32(view[: FILE_BYTES - 4]):
        return Scan(columns, 0, "the header is damaged")
    if version != VERSION:
        raise UsageError(
            f"the journal was written in format {version}, and this release reads {VERSION}: use the release "
            "that wrote it, or another folder"
        )
    at, end, unpack, add = FILE_BYTES, len(view), _RECORD.unpack_from, columns.add
    problem: str | None = None
    while at < end:
        if at + RECORD_BYTES > end:
            problem = "a record is cut off"
            break
        length, found, kind, number, tag = unpack(view, at)
        stop = at + RECORD_BYTES + length
        if stop > end:
            problem = "a record is cut off or its length is damaged"
            break
        body = view[at + RECORD_BYTES : stop]
        if crc32(body, crc32(view[at + _CHECKED_FROM : at + RECORD_BYTES], length)) != found:
            problem = "a record does not match its checksum"
            break
        if number >= MAX_NUMBER:
            problem = f"a record is of request {number:,}, which no server gives"
            break
        add(at, kind, number, tag)
        at = stop
    return Scan(columns, at, problem, bool(sealed), key_id if sealed else b"")


def tag_of(text: str) -> int:
    """The tag under which a text is found again."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def write_whole(file: int, parts: Sequence[bytes]) -> None:
    """Write all of the parts; OSError where the disk takes less."""
    view = memoryview(b"".join(parts) if len(parts) != 1 else parts[0])
    while view:
        view = view[os.write(file, view) :]


def _sum(view: memoryview, at: int, end: int, length: int) -> int:
    body = view[at + RECORD_BYTES : end]
    return crc32(body, crc32(view[at + _CHECKED_FROM : at + RECORD_BYTES], length))
