"""The log: files in a folder of one process, appended to in groups, rotated, compacted within a budget."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.journal.folder import FULL, MAX_RESERVE_BYTES, Reserve, claimed
from headrace.journal.frames import Cipher, JournalDamaged, record, write_whole
from headrace.journal.reader import AGAIN_S, JournalUnwritable, LogReader, Numbers, RecordKind
from headrace.journal.segment import (
    DAMAGED_SUFFIX,
    PART_SUFFIX,
    SUFFIX,
    Record,
    Segment,
    joined,
    new_segment,
    open_segment,
)

LOG = logging.getLogger("headrace.journal")
SEGMENT_BYTES = 64 * 2**20
REMOVED = "start the server again, which makes a new journal"
AGES = 8
"""Files are begun so often within the greatest age."""
WORTH = 4
"""A file is written anew where a fourth of it or more would go."""
SMALL, MANY = 8, 16
"""Each deletion ends a file: where so many follow each other that are shorter than an eighth of the length at
which files end, they become one."""


class Log(LogReader):
    """Appending is for one thread, reading for any. Numbers are those of requests, and only grow."""

    def __init__(
        self,
        folder: Path,
        *,
        budget_bytes: int = 2**30,
        max_age_s: float = 7 * 86_400.0,
        cipher: Cipher | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Raises JournalInUse, JournalUnwritable, UsageError."""
        self._budget, self._max_age_s = budget_bytes, max_age_s
        self._segment_bytes = max(2**16, min(segment_bytes, budget_bytes // 4))
        self._held: list[bytes] = []
        self._places: list[tuple[int, int, int]] = []  # kind, number, tag of what is held
        self._is_over_budget = self.is_removed = False
        self._has_forgotten = False  # whether the file that grows has records of requests that are deleted
        self._full: list[int] = []  # files that nothing is appended to any more, and that are not synced yet
        try:
            self._owner: IO[str] | None = claimed(folder)
        except OSError as error:
            said = error.strerror or error  # a lock that is a pipe has no strerror
            raise JournalUnwritable(f"the journal {folder} cannot be opened: {said}") from None
        try:
            self.folder = folder
            for part in self._files(PART_SUFFIX):  # a process was killed while it wrote a file anew
                part.unlink()
            super().__init__(folder, cipher, repairs=True)
            self._file = self._begin_appending()
        except OSError as error:
            self._release()
            raise JournalUnwritable(f"the journal {folder} cannot be opened: {error.strerror}") from None
        except BaseException:
            self._release()
            raise
        self._reserve = Reserve(folder, min(MAX_RESERVE_BYTES, budget_bytes // 16))
        self._reserve.take()
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
        self._held, self._places = [], []
        active = self._segments[-1]
        if self.is_removed:
            raise JournalUnwritable(f"{active.path} was removed by somebody: {REMOVED}")
        if not held:
            return
        try:
            try:
                write_whole(self._file, held)
            except OSError as error:
                if error.errno not in FULL or not self._reserve.give():
                    raise
                self._cut_back(active)
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
                if kind == RecordKind.FORGOTTEN:
                    self._forgotten.add(number)
                    self._has_forgotten = True
            active.end = at
        if at >= self._segment_bytes:
            self._rotate()

    def look_for_removal(self) -> None:
        """Called now and then: from a file that somebody has removed nothing would ever be read."""
        self.is_removed = self.is_removed or os.fstat(self._file).st_nlink == 0

    def sync(self) -> None:
        """Wait until the disk has what was written. From any thread; JournalUnwritable."""
        with self._lock:
            full, self._full = self._full, []
            files = [*full, os.dup(self._file)]
        try:
            for file in files:
                os.fdatasync(file)
        except OSError as error:
            raise JournalUnwritable(f"the journal {self.folder} cannot be synced: {error.strerror}") from None
        finally:
            for file in files:
                os.close(file)

    def forget(self, numbers: Collection[int], *, ends_file: bool = True) -> None:
        """Requests are deleted: their bytes are gone after the next `care`, once the file that grows has
        ended."""
        for number in numbers:
            self.append(RecordKind.FORGOTTEN, number, 0, b"")
        self.write()
        if ends_file:
            self.end_file()

    def end_file(self) -> None:
        """Go on in a new file."""
        self._rotate()

    def close(self) -> None:
        """Write what is held and let the folder go."""
        try:
            self.write()
        finally:
            for file in (*self._full, *((self._file,) if self._file >= 0 else ())):
                os.close(file)
            self._full, self._file = [], -1
            self._release()

    def begin_new_file_if_old(self) -> None:
        """What is too old goes file by file: one that grows must not have records of all ages, nor for long
        what was forgotten."""
        active = self._segments[-1]
        assert active.columns is not None
        is_old = time.time() - self._began_s > self._max_age_s / AGES
        if len(active.columns) and (is_old or self._has_forgotten):
            self._rotate()

    # -- care ------------------------------------------------------------------------------------------

    def care(self) -> None:
        """Check and index files that are full, drop what is not needed, stay within the budget. Takes long:
        in a thread; only one at a time."""
        self.needs_care = False
        try:
            self._care()
        except OSError as error:  # such as a disk that is full: the next time
            LOG.error("the journal %s cannot be looked after: %s", self.folder, error.strerror)

    def _care(self) -> None:
        self._sync_full()
        open_numbers = np.array(self.unfinished(), np.uint64)
        gone = np.array(sorted(self._gone()), np.uint64)
        for segment in self._copies()[:-1]:
            if segment.columns is not None:
                segment.seal()
            self._compact(segment, open_numbers, gone)
        self._forget_set_aside()
        self._join()
        self._drop(open_numbers)

    def verify(self) -> None:
        """Read every file that is full; set the damaged part of one aside."""
        for segment in self._copies()[:-1]:
            try:
                for _ in segment.read(segment.rows, self._cipher):
                    pass
            except JournalDamaged:
                self._repair(segment)

    def _sync_full(self) -> None:
        with self._lock:
            full, self._full = self._full, []
        for file in full:
            try:
                os.fdatasync(file)
            except OSError as error:
                LOG.error("the journal %s cannot be synced: %s", self.folder, error.strerror)
            os.close(file)

    def _compact(self, segment: Segment, open_numbers: Numbers, gone: Numbers) -> None:
        rows = segment.rows
        is_gone = np.isin(rows["number"], gone) & (rows["kind"] != RecordKind.FORGOTTEN)
        progress = (RecordKind.EVENTS, RecordKind.RUN, RecordKind.RESTARTED, RecordKind.TIMED)
        spare = np.isin(rows["kind"], progress) & ~np.isin(rows["number"], open_numbers)
        sizes = np.diff(np.append(rows["at"].astype(np.int64), segment.end))
        if is_gone.any() or sizes[spare].sum() * WORTH >= segment.end:
            self._rewrite(segment, ~(is_gone | spare))

    def _join(self) -> None:
        """Make one file of many short ones of about the same age."""
        short = list[Segment]()
        for segment in self._copies()[:-1]:
            if short and not self._joins(short[0], segment):
                short = []
            if segment.end < self._segment_bytes // SMALL:
                short.append(segment)
            if len(short) == MANY:
                break
        if len(short) < MANY:
            return
        whole = joined(short)
        gone = {id(one) for one in short[1:]}
        with self._lock:
            kept = [one for one in self._segments if id(one) not in gone]
            whole.put_in_place()
            self._segments = [whole.segment if one is short[0] else one for one in kept]
        whole.settle()
        for segment in short[1:]:
            segment.delete()

    def _joins(self, first: Segment, other: Segment) -> bool:
        if other.end >= self._segment_bytes // SMALL or other.key_id != first.key_id:
            return False
        apart_s = other.path.stat().st_mtime - first.path.stat().st_mtime
        return abs(apart_s) < self._max_age_s / (2 * AGES)

    def _repair(self, segment: Segment) -> None:
        segment.index.unlink(missing_ok=True)
        found, damage = open_segment(segment.path, grows=False)
        if damage is not None:
            LOG.error("the journal is damaged: %s", damage.message)
            self.damages.append(damage)
        self._replace(segment, found)

    def _drop(self, open_numbers: Numbers) -> None:
        """Remove the oldest files; requests that run, or that have ended in the file that grows, are written
        again."""
        oldest_s, size = time.time() - self._max_age_s, self.size_bytes
        dropped, kept = list[Segment](), list[Record]()
        *full, active = self._copies()
        about_servers = np.zeros(1, np.uint64)
        open_numbers = np.concatenate((open_numbers, self._rows(active)["number"], about_servers))
        for segment in full:
            if size <= self._budget and segment.path.stat().st_mtime >= oldest_s:
                break
            size -= segment.end
            try:
                rows = segment.rows[np.isin(segment.rows["number"], open_numbers)]
                kept += segment.read(rows, self._cipher)
            except JournalDamaged:
                self._repair(segment)
                return
            dropped.append(segment)
        if kept and len(dropped) == 1 and len(kept) == len(dropped[0].rows):
            return  # it has nothing else
        carried = self._carry(kept) if kept else []
        gone_numbers = [one.rows["number"] for one in dropped]
        with self._lock:
            gone = {id(one) for one in dropped}
            self._segments = [*carried, *(one for one in self._segments if id(one) not in gone)]
        for segment in dropped:
            segment.delete()
        if gone_numbers:
            self._drop_ends(np.setdiff1d(np.concatenate(gone_numbers), open_numbers))
        self._note_budget()

    def _drop_ends(self, numbers: Numbers) -> None:
        """Of requests that are gone the replies, too, in the files after theirs: nobody could delete them."""
        for segment in self._copies()[:-1]:
            rows = segment.rows
            spare = np.isin(rows["number"], numbers) & (rows["kind"] != RecordKind.FORGOTTEN)
            if spare.any():
                self._rewrite(segment, ~spare)

    def _note_budget(self) -> None:
        """Say it once where requests that run need more than the budget."""
        size, was_over = self.size_bytes, self._is_over_budget
        self._is_over_budget = size > self._budget + self._segment_bytes
        if self._is_over_budget and not was_over:
            LOG.warning(
                "the journal %s has %s bytes, its budget is %s: requests that have not ended need them",
                *(self.folder, f"{size:,}", f"{self._budget:,}"),
            )

    def _carry(self, records: Collection[Record]) -> list[Segment]:
        """Records of requests that run in a file of their own, which comes before what was written since."""
        first = int(self._copies()[0].path.stem)
        segment = new_segment(self.folder / f"{first - 1:012d}{SUFFIX}", self._cipher)
        assert segment.columns is not None
        with segment.path.open("ab") as file:
            for one in records:
                data = record(one.kind, one.number, one.tag, one.payload, self._cipher)
                segment.columns.add(segment.end, one.kind, one.number, one.tag)
                segment.end += file.write(data)
            file.flush()
            os.fsync(file.fileno())
        segment.seal()
        return [segment]

    def _forget_set_aside(self) -> None:
        """Nobody can look for deleted requests in what was set aside."""
        with self._lock:
            if not self._forgotten:
                return
        for path in self._files(DAMAGED_SUFFIX):
            LOG.warning("%s is removed: a request was deleted, and it may have a part of it", path)
            path.unlink(missing_ok=True)

    # -- the reserve -----------------------------------------------------------------------------------

    @property
    def has_reserve(self) -> bool:
        """Whether there is room for requests that run when the disk is full."""
        return self._reserve.is_there

    def take_reserve(self) -> bool:
        """Keep that room, as far as there is some; False where there is none."""
        return self._reserve.take()

    # -- files -----------------------------------------------------------------------------------------

    def _begin_appending(self) -> int:
        key_id = b"" if self._cipher is None else self._cipher.key_id
        last = self._segments[-1] if self._segments else None
        if last is None or last.columns is None or last.key_id != key_id or last.end >= self._segment_bytes:
            self._segments.append(self._new_segment())
        active = self._segments[-1]
        path, columns = active.path, active.columns
        self._has_forgotten = columns is not None and RecordKind.FORGOTTEN in columns.kind
        self._began_s = path.stat().st_mtime
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)

    def _new_segment(self) -> Segment:
        place = int(self._segments[-1].path.stem) + 1 if self._segments else 1_000_000
        return new_segment(self.folder / f"{place:012d}{SUFFIX}", self._cipher)

    def _rotate(self) -> None:
        try:
            segment = self._new_segment()
            file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except OSError as error:
            LOG.warning("the journal goes on in a file that is full: %s", error.strerror)
            return
        with self._lock:
            self._full.append(self._file)
            self._file, self._began_s, self._has_forgotten = file, time.time(), False
            self._segments = [*self._segments, segment]
        self.needs_care = True

    def _cut_back(self, active: Segment) -> None:
        """Half a record must not stand before the next one."""
        try:
            os.ftruncate(self._file, active.end)
        except OSError as error:
            LOG.error("the journal cannot be cut back: %s", error.strerror)

    def _rewrite(self, segment: Segment, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Readers have the old file with the old places of its records, or the new one with the new ones."""
        new = segment.rewritten(keep)
        with self._lock:
            self._replace(segment, new.put_in_place())
        new.settle()

    def _look_again(self) -> None:
        """The files are its own: what it knows of them is right in a moment."""
        time.sleep(AGAIN_S)

    def _replace(self, old: Segment, new: Segment | None) -> None:
        with self._lock:
            self._segments = [
                kept for one in self._segments if (kept := new if one is old else one) is not None
            ]

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.close()
            self._owner = None
