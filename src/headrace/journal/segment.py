"""One file of the log, with the index that is written beside it once nothing more is appended."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import numpy as np
from msgspec import Struct

from headrace.journal.frames import (
    FILE_BYTES,
    MAX_NUMBER,
    RECORD_BYTES,
    Cipher,
    Columns,
    JournalDamaged,
    body_bytes,
    file_header,
    names_of,
    payload_at,
    scan,
)

SUFFIX, INDEX_SUFFIX, DAMAGED_SUFFIX, PART_SUFFIX = ".log", ".index", ".damaged", ".part"
PRIVATE_MODE = 0o600
_ROW = np.dtype([("at", "<u8"), ("number", "<u8"), ("tag", "<u8"), ("kind", "u1")])
_INDEX_MAGIC = b"HRINDEX1"
_INDEX_BYTES = 8 + 8 + 4

Rows = np.ndarray[Any, np.dtype[np.void]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Record(Struct, frozen=True):
    """One record, opened."""

    kind: int
    number: int
    tag: int
    payload: bytes


class Damage(Struct, frozen=True):
    """What was wrong with a file, and where its rest was set aside."""

    file: str
    problem: str
    good_bytes: int
    set_aside: str
    set_aside_bytes: int

    @property
    def message(self) -> str:
        """One sentence."""
        return (
            f"{self.file}: {self.problem} after {self.good_bytes:,} good bytes; the other "
            f"{self.set_aside_bytes:,} bytes are in {self.set_aside}"
        )


class Segment:
    """A file and its records. `columns` are there while it grows, `rows` afterwards."""

    def __init__(
        self, path: Path, end: int, columns: Columns | None, rows: Rows | None, key_id: bytes
    ) -> None:
        self.path, self.end, self.key_id = path, end, key_id
        self.columns, self._rows = columns, rows

    @property
    def rows(self) -> Rows:
        """Its records by place."""
        columns = self.columns  # first: `seal` may be running
        if self._rows is not None:
            return self._rows
        assert columns is not None
        return rows_of(columns)

    @property
    def index(self) -> Path:
        """The file with its rows."""
        return self.path.with_suffix(INDEX_SUFFIX)

    def seal(self) -> None:
        """Nothing more is appended: write the index."""
        self._rows = rows = self.rows
        self.columns = None
        data = rows.tobytes()
        head = (
            _INDEX_MAGIC
            + self.end.to_bytes(8, "little")
            + crc32(data, self.end & 0xFFFFFFFF).to_bytes(4, "little")
        )
        write_file(self.index, head + data)

    def read(self, rows: Rows, cipher: Cipher | None, file: IO[bytes] | None = None) -> Iterator[Record]:
        """The records of these rows, in order; `file` is the opened file, which is closed. JournalDamaged,
        also where there is another record than the row says: it was written anew."""
        if not len(rows):
            if file is not None:
                file.close()
            return
        with file or self.path.open("rb") as opened:
            file_bytes = os.fstat(opened.fileno()).st_size
            for row in rows:
                at, number, tag, kind = (int(row[name]) for name in ("at", "number", "tag", "kind"))
                opened.seek(at)
                head = opened.read(RECORD_BYTES)
                if names_of(head) != (kind, number, tag):
                    raise JournalDamaged(f"the record at byte {at:,} is another one")
                data = head + opened.read(min(body_bytes(head), max(0, file_bytes - at)))
                yield Record(kind, number, tag, payload_at(data, 0, cipher if self.key_id else None))

    def rewritten(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> Rewritten:
        """The file with those of its records alone; nothing else of it is left once that is in its place."""
        return _written_anew(self, [(self, self.rows[keep])])

    def delete(self) -> None:
        """Remove its files."""
        self.index.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)


class Rewritten:
    """A file that was written anew, beside the old one."""

    def __init__(self, segment: Segment, part: Path) -> None:
        self.segment, self._part = segment, part

    def put_in_place(self) -> Segment:
        """Let it take the old one's place, which takes no time; `settle` is to follow."""
        self.segment.index.unlink(missing_ok=True)
        self._part.replace(self.segment.path)
        return self.segment

    def settle(self) -> None:
        """Let its name survive a power cut, and write its index."""
        sync_folder(self.segment.path.parent)
        self.segment.seal()


def joined(parts: Sequence[Segment]) -> Rewritten:
    """Files that follow each other as one, in the place and of the age of the first. The others are still
    there: what is in two files is read once."""
    return _written_anew(parts[0], [(part, part.rows) for part in parts])


def _written_anew(place: Segment, parts: Sequence[tuple[Segment, Rows]]) -> Rewritten:
    """A file with these records alone, as they are: one that is damaged remains so, and is found later."""
    new, tables = bytearray(), list[Rows]()
    for part, rows in parts:
        view = memoryview(part.path.read_bytes())
        new += b"" if new else view[:FILE_BYTES]
        rows = rows.copy()
        starts, ends = rows["at"].astype(np.int64), _ends(part, rows)
        rows["at"] = len(new) + np.cumsum(ends - starts) - (ends - starts)
        tables.append(rows)
        breaks = np.flatnonzero(ends[:-1] != starts[1:]) + 1  # where one that is left out was
        for group in np.split(np.arange(len(rows)), breaks):
            new += view[starts[group[0]] : ends[group[-1]]] if len(group) else b""
    status, part_path = place.path.stat(), write_part(place.path, bytes(new))
    os.utime(part_path, ns=(status.st_atime_ns, status.st_mtime_ns))  # its records are as old as before
    return Rewritten(Segment(place.path, len(new), None, np.concatenate(tables), place.key_id), part_path)


def _ends(segment: Segment, rows: Rows) -> Numbers:
    """Where these records end: where the next one of the file begins."""
    every = np.append(segment.rows["at"].astype(np.int64), segment.end)
    return every[np.searchsorted(every, rows["at"].astype(np.int64)) + 1]


def rows_of(columns: Columns) -> Rows:
    """The same as one array."""
    rows = np.zeros(len(columns), _ROW)
    rows["at"] = np.frombuffer(columns.at, np.uint64) if len(columns) else 0
    rows["number"] = np.frombuffer(columns.number, np.uint64) if len(columns) else 0
    rows["tag"] = np.frombuffer(columns.tag, np.uint64) if len(columns) else 0
    rows["kind"] = np.frombuffer(columns.kind, np.uint8) if len(columns) else 0
    return rows


def new_segment(path: Path, cipher: Cipher | None) -> Segment:
    """An empty file."""
    header = file_header(cipher)
    write_file(path, header)
    return Segment(path, len(header), Columns(), None, b"" if cipher is None else cipher.key_id)


def open_segment(path: Path, *, grows: bool, repairs: bool = True) -> tuple[Segment | None, Damage | None]:
    """A file of the disk. What follows its longest good prefix is set aside where `repairs`; None where
    nothing of it is good. A file that does not grow is read by its index, where that matches."""
    size = path.stat().st_size
    rows = None if grows else _read_index(path.with_suffix(INDEX_SUFFIX), size)
    if rows is not None:
        with path.open("rb") as file:
            head = scan(file.read(FILE_BYTES))
        if head.problem is None and head.end == FILE_BYTES:
            return Segment(path, size, None, rows, head.key_id), None
    data = path.read_bytes()
    found = scan(data)
    damage: Damage | None = None
    if found.problem is not None:
        damage = _set_aside(path, data, found.end, found.problem, repairs=repairs)
    if found.end < FILE_BYTES:
        if repairs:
            path.unlink(missing_ok=True)
            path.with_suffix(INDEX_SUFFIX).unlink(missing_ok=True)
        return None, damage
    segment = Segment(path, found.end, found.columns, None, found.key_id)
    if not grows:
        if repairs:
            segment.seal()
    elif repairs:
        segment.index.unlink(missing_ok=True)
    return segment, damage


def _set_aside(path: Path, data: bytes, end: int, problem: str, *, repairs: bool) -> Damage:
    number = 0
    while (aside := path.with_name(f"{path.stem}-{number}{DAMAGED_SUFFIX}")).exists():
        number += 1
    if repairs:
        write_file(aside, data[end:])
        if end:
            os.truncate(path, end)
    return Damage(path.name, problem, end, aside.name if repairs else f"{path.name} still", len(data) - end)


def _read_index(path: Path, size: int) -> Rows | None:
    """The rows of an index that belongs to a file of that size; None where it does not."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _INDEX_BYTES + size:
            return None  # a row is no longer than its record
        data = opened.read()
    head, body = data[:_INDEX_BYTES], memoryview(data)[_INDEX_BYTES:]
    if len(head) < _INDEX_BYTES or head[:8] != _INDEX_MAGIC or int.from_bytes(head[8:16], "little") != size:
        return None
    if crc32(body, size & 0xFFFFFFFF) != int.from_bytes(head[16:20], "little") or len(body) % _ROW.itemsize:
        return None
    rows = np.frombuffer(body, _ROW)
    ends = np.append(rows["at"][1:], np.uint64(size))
    is_in_order = len(rows) == 0 or bool(rows["at"][0] == FILE_BYTES and (rows["at"] < ends).all())
    return rows if is_in_order and (rows["number"] < MAX_NUMBER).all() else None


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, so that after a crash there is the old one or the new one."""
    write_part(path, data).replace(path)
    sync_folder(path.parent)


def write_part(path: Path, data: bytes) -> Path:
    """Write what is to replace that file, beside it."""
    part = path.with_name(path.name + PART_SUFFIX)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_MODE)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    except OSError:
        part.unlink()
        raise
    finally:
        os.close(file)
    return part


def sync_folder(folder: Path) -> None:
    """Let the names of its files survive a power cut."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
