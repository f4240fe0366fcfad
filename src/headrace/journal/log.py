"""The log: files in a folder of one process, appended to in groups, rotated, compacted within a budget."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.errors import HeadraceError, UsageError
from headrace.journal.frames import Cipher, JournalDamaged, record, write_whole
from headrace.journal.segment import (
    DAMAGED_SUFFIX,
    SUFFIX,
    Damage,
    Record,
    Rows,
    Segment,
    new_segment,
    open_segment,
)

LOG = logging.getLogger("headrace.journal")
SEGMENT_BYTES = 64 * 2**20
LOCK = "lock"
WORTH = 4
"""A file is written anew where a fourth of it or more would go."""


class RecordKind(IntEnum):
    """What a record is. A request begins with OPENED and has ended with ENDED or FORGOTTEN."""

    OPENED = 1
    RUN = 2
    EVENTS = 3
    ENDED = 4
    FORGOTTEN = 5
    SERVER = 6


Numbers = np.ndarray[Any, np.dtype[np.uint64]]
_ENDS = (RecordKind.ENDED, RecordKind.FORGOTTEN)


class JournalInUse(HeadraceError):
    """Another process has the journal's folder."""

    remedy = "Stop that process, or name another folder."
    exit_code = 2


class JournalUnwritable(HeadraceError):
    """The disk takes no records: it is full, read-only or broken."""

    remedy = "Make room on the disk, or start the server with another journal folder."
    status = 507
    code = "journal_unwritable"


class Log:
    """Appending is for one thread, reading for any. Numbers are those of requests, and only grow."""

    def __init__(
        self,
        folder: Path,
        *,
        budget_bytes: int = 2**30,
        max_age_s: float = 7 * 86_400.0,
        cipher: Cipher | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        reads_only: bool = False,
    ) -> None:
        """Raises JournalInUse, JournalUnwritable, UsageError. With `reads_only` nothing is changed, and
        another process may have the folder."""
        self.folder, self._cipher = folder, cipher
        self._budget, self._max_age_s = budget_bytes, max_age_s
        self._segment_bytes = max(2**16, min(segment_bytes, budget_bytes // 4))
        self.damages: list[Damage] = []
        self._lock = threading.RLock()
        self._held: list[bytes] = []
        self._places: list[tuple[int, int, int]] = []  # kind, number, tag of what is held
        self._forgotten: set[int] = set()
        self._reads_only = reads_only
        self._owner: IO[str] | None = None
        try:
            if not reads_only:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._owner = _claimed(folder)
            self._segments = self._opened()
            self._file = -1 if reads_only else self._begin_appending()
        except OSError as error:
            self._release()
            raise JournalUnwritable(f"the journal {folder} cannot be opened: {error.strerror}") from None
        except BaseException:
            self._release()
            raise
        self.needs_care = len(self._segments) > 1
        """Whether `care` has something to do."""
        found = [int(one.rows["number"].max()) for one in self._segments if len(one.rows)]
        self.next_number = max(found, default=0) + 1

    # -- appending -------------------------------------------------------------------------------------

    def append(self, kind: RecordKind, number: int, tag: int, payload: bytes) -> None:
        """Hold a record until `write`."""
        self._held.append(record(kind, number, tag, payload, self._cipher))
        self._places.append((kind, number, tag))

    def write(self) -> None:
        """Give what is held to the operating system, from where a killed process loses nothing.

        Raises JournalUnwritable; then nothing of it is written, and all of it is dropped.
        """
        held, places = self._held, self._places
        if not held:
            return
        self._held, self._places = [], []
        active = self._segments[-1]
        try:
            write_whole(self._file, held)
        except OSError as error:
            self._cut_back(active)
            raise JournalUnwritable(f"the journal {self.folder} takes no records: {error.strerror}") from None
        at, columns = active.end, active.columns
        assert columns is not None
        with self._lock:
            for data, (kind, number, tag) in zip(held, places, strict=True):
                columns.add(at, kind, number, tag)
                at += len(data)
            active.end = at
        if at >= self._segment_bytes:
            self._rotate()

    def sync(self) -> None:
        """Wait until the disk has what was written. From any thread; JournalUnwritable."""
        with self._lock:
            file = os.dup(self._file)
        try:
            os.fdatasync(file)
        except OSError as error:
            raise JournalUnwritable(f"the journal {self.folder} cannot be synced: {error.strerror}") from None
        finally:
            os.close(file)

    def forget(self, numbers: Collection[int]) -> None:
        """Requests are deleted: their bytes are gone after the next `care`."""
        for number in numbers:
            self.append(RecordKind.FORGOTTEN, number, 0, b"")
        self.write()
        with self._lock:
            self._forgotten.update(numbers)
        self._rotate()

    def close(self) -> None:
        """Write what is held and let the folder go."""
        try:
            if not self._reads_only:
                self.write()
        finally:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            self._release()

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        with self._lock:
            return sum(one.end for one in self._segments)

    def unfinished(self) -> list[int]:
        """The requests that were opened and have not ended."""
        opened, ended = self._numbers(RecordKind.OPENED), self._numbers(*_ENDS)
        return _without(opened, ended).tolist()

    def ended(self) -> list[int]:
        """The requests of which opening and end are here, oldest first."""
        opened = _without(self._numbers(RecordKind.OPENED), self._numbers(RecordKind.FORGOTTEN))
        return _without(opened, _without(opened, self._numbers(RecordKind.ENDED))).tolist()

    def find(self, tag: int) -> list[int]:
        """The requests whose opening or end has that tag, newest first."""
        found: set[int] = set()
        for segment in self._copies():
            rows = self._rows(segment)
            hits = (rows["tag"] == tag) & np.isin(rows["kind"], (RecordKind.OPENED, RecordKind.ENDED))
            found.update(int(number) for number in rows["number"][hits])
        return sorted(found - self._gone(), reverse=True)

    def read(self, numbers: Iterable[int], *kinds: RecordKind) -> dict[int, list[Record]]:
        """The records of requests in the order in which they were written; of these kinds, if any are named.

        What is damaged is left out, and with it what follows in its file.
        """
        wanted = np.array(sorted({*numbers} - self._gone()), np.uint64)
        found: dict[int, list[Record]] = {int(number): [] for number in wanted}
        for segment in self._copies():
            rows = self._rows(segment)
            hits = np.isin(rows["number"], wanted)
            if kinds:
                hits &= np.isin(rows["kind"], kinds)
            try:
                for one in segment.read(rows[hits], self._cipher):
                    found[one.number].append(one)
            except JournalDamaged as error:
                LOG.error("%s: %s", segment.path, error.message)
        return found

    # -- care ------------------------------------------------------------------------------------------

    def care(self) -> None:
        """Check and index files that are full, drop what is not needed, stay within the budget. Takes long:
        in a thread; only one at a time."""
        self.needs_care = False
        open_numbers = np.array(self.unfinished(), np.uint64)
        for segment in self._copies()[:-1]:
            if segment.columns is not None:
                segment.seal()
            try:
                self._compact(segment, open_numbers)
            except JournalDamaged:
                self._repair(segment)
        self._forget_set_aside()
        self._drop(open_numbers)

    def checked(self) -> list[Damage]:
        """Read every file as a whole, changing nothing; what is wrong with them."""
        found = [open_segment(one.path, grows=True, repairs=False)[1] for one in self._copies()[:-1]]
        return [one for one in found if one is not None]

    def verify(self) -> None:
        """Read every file that is full; set the damaged part of one aside."""
        for segment in self._copies()[:-1]:
            try:
                for _ in segment.read(segment.rows, self._cipher):
                    pass
            except JournalDamaged:
                self._repair(segment)

    def _compact(self, segment: Segment, open_numbers: Numbers) -> None:
        rows = segment.rows
        gone = np.array(sorted(self._gone()), np.uint64)
        is_gone = np.isin(rows["number"], gone) & (rows["kind"] != RecordKind.FORGOTTEN)
        spare = np.isin(rows["kind"], (RecordKind.EVENTS, RecordKind.RUN)) & ~np.isin(
            rows["number"], open_numbers
        )
        sizes = np.diff(np.append(rows["at"].astype(np.int64), segment.end))
        if is_gone.any() or sizes[spare].sum() * WORTH >= segment.end:
            self._replace(segment, segment.rewritten(~(is_gone | spare)))

    def _repair(self, segment: Segment) -> None:
        segment.index.unlink(missing_ok=True)
        found, damage = open_segment(segment.path, grows=False)
        if damage is not None:
            LOG.error("the journal is damaged: %s", damage.message)
            self.damages.append(damage)
        self._replace(segment, found)

    def _drop(self, open_numbers: Numbers) -> None:
        """Remove the oldest files; requests that run are written again."""
        oldest_s = time.time() - self._max_age_s
        for segment in self._copies()[:-1]:
            is_old = segment.path.stat().st_mtime < oldest_s
            if self.size_bytes <= self._budget and not is_old:
                return
            kept = list(
                segment.read(segment.rows[np.isin(segment.rows["number"], open_numbers)], self._cipher)
            )
            if kept:
                self._carry(kept)
            self._replace(segment, None)
            segment.delete()

    def _carry(self, records: Collection[Record]) -> None:
        """Records of requests that run go into a file of their own, which comes before what was written
        since."""
        with self._lock:
            active = self._segments[-1]
            taken = {one.path.name for one in self._segments}
            first = int(self._segments[0].path.stem)
            place = first - 1
            path = self.folder / f"{place:012d}{SUFFIX}"
            assert path.name not in taken and active is not None
        segment = new_segment(path, self._cipher)
        assert segment.columns is not None
        with path.open("ab") as file:
            for one in records:
                data = record(one.kind, one.number, one.tag, one.payload, self._cipher)
                segment.columns.add(segment.end, one.kind, one.number, one.tag)
                segment.end += file.write(data)
            file.flush()
            os.fsync(file.fileno())
        segment.seal()
        with self._lock:
            self._segments = [segment, *self._segments]

    def _forget_set_aside(self) -> None:
        """Nobody can look for deleted requests in what was set aside."""
        with self._lock:
            if not self._forgotten:
                return
        for path in self.folder.glob(f"*{DAMAGED_SUFFIX}"):
            LOG.warning("%s is removed: a request was deleted, and it may have a part of it", path)
            path.unlink(missing_ok=True)

    # -- files -----------------------------------------------------------------------------------------

    def _opened(self) -> list[Segment]:
        paths = sorted(self.folder.glob(f"*{SUFFIX}"))
        found: list[Segment] = []
        for path in paths:
            segment, damage = open_segment(path, grows=path == paths[-1], repairs=not self._reads_only)
            if damage is not None:
                LOG.error("the journal is damaged: %s", damage.message)
                self.damages.append(damage)
            if segment is None:
                continue
            if segment.key_id and (self._cipher is None or self._cipher.key_id != segment.key_id):
                which = "no key is given" if self._cipher is None else "another key is given"
                raise UsageError(
                    f"{path} is encrypted and {which}: name its key with journal.key_file, or another folder"
                )
            found.append(segment)
        for segment in found:
            rows = segment.rows
            self._forgotten.update(int(one) for one in rows["number"][rows["kind"] == RecordKind.FORGOTTEN])
        return found

    def _begin_appending(self) -> int:
        key_id = b"" if self._cipher is None else self._cipher.key_id
        last = self._segments[-1] if self._segments else None
        if last is None or last.columns is None or last.key_id != key_id or last.end >= self._segment_bytes:
            self._segments.append(self._new_segment())
        return os.open(self._segments[-1].path, os.O_WRONLY | os.O_APPEND)

    def _new_segment(self) -> Segment:
        place = int(self._segments[-1].path.stem) + 1 if self._segments else 1_000_000
        return new_segment(self.folder / f"{place:012d}{SUFFIX}", self._cipher)

    def _rotate(self) -> None:
        try:
            segment = self._new_segment()
            file = os.open(segment.path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            LOG.warning("the journal goes on in a file that is full: %s", error.strerror)
            return
        with self._lock:
            os.close(self._file)
            self._file = file
            self._segments = [*self._segments, segment]
        self.needs_care = True

    def _cut_back(self, active: Segment) -> None:
        """Half a record must not stand before the next one."""
        try:
            os.ftruncate(self._file, active.end)
        except OSError as error:
            LOG.error("the journal cannot be cut back: %s", error.strerror)

    def _replace(self, old: Segment, new: Segment | None) -> None:
        with self._lock:
            self._segments = [
                kept for one in self._segments if (kept := new if one is old else one) is not None
            ]

    def _copies(self) -> list[Segment]:
        with self._lock:
            return list(self._segments)

    def _rows(self, segment: Segment) -> Rows:
        """The records of a file as they are now: the last one grows meanwhile."""
        with self._lock:
            return segment.rows

    def _gone(self) -> set[int]:
        with self._lock:
            return set(self._forgotten)

    def _numbers(self, *kinds: RecordKind) -> Numbers:
        tables = [self._rows(one) for one in self._copies()]
        found = [rows["number"][np.isin(rows["kind"], kinds)] for rows in tables]
        return _distinct(np.concatenate(found) if found else np.zeros(0, np.uint64))

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.close()
            self._owner = None


def _distinct(numbers: Numbers) -> Numbers:
    """Sorted, each once. They are almost sorted as they come, which np.unique makes nothing of."""
    found = np.sort(numbers, kind="stable")
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


def _without(numbers: Numbers, others: Numbers) -> Numbers:
    """Those that are not among the others; both are sorted."""
    if not len(others):
        return numbers
    places = np.minimum(np.searchsorted(others, numbers), len(others) - 1)
    return numbers[others[places] != numbers]


def _claimed(folder: Path) -> IO[str]:
    """The lock of a folder. JournalInUse names the process that has it."""
    file = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = file.read().strip() or "unknown"
        file.close()
        raise JournalInUse(
            f"the journal {folder} is in use by process {owner}: stop that one, or name another folder"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
