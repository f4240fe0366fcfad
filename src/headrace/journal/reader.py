"""Reads the log: which requests there are, and their records. Changes nothing, also while a server writes."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import HeadraceError, UsageError
from headrace.journal.frames import Cipher, JournalDamaged
from headrace.journal.segment import SUFFIX, Damage, Record, Rows, Segment, open_segment

LOG = logging.getLogger("headrace.journal")
_NAME = re.compile(r"[0-9]{12}(\.log|-[0-9]+\.damaged|\.(log|index)\.part)")
TRIES, AGAIN_S = 5, 0.05


class RecordKind(IntEnum):
    """What a record is. A request begins with OPENED and has ended with ENDED or FORGOTTEN."""

    OPENED = 1
    RUN = 2
    EVENTS = 3
    ENDED = 4
    FORGOTTEN = 5
    SERVER = 6
    RESTARTED = 7
    """The tag is that from which on events are others than those that were recorded before."""
    TIMED = 8
    """A moment that clients are told, in seconds."""
    LISTED = 9
    """What a list says of a request that has ended; the tag is that of its owner."""


Numbers = np.ndarray[Any, np.dtype[np.uint64]]
_ENDS = (RecordKind.ENDED, RecordKind.FORGOTTEN)


class JournalUnwritable(HeadraceError):
    """The disk takes no records: it is full, read-only or broken."""

    remedy = "Make room on the disk, or start the server with another journal folder."
    status = 507
    code = "journal_unwritable"


class LogReader:
    """The records of a folder's files. Reading is for any thread."""

    def __init__(self, folder: Path, cipher: Cipher | None = None, *, repairs: bool = False) -> None:
        """Raises JournalUnwritable, UsageError. With `repairs` what is damaged is set aside."""
        self.folder, self._cipher = folder, cipher
        self.damages: list[Damage] = []
        self._lock = threading.RLock()
        self._forgotten: set[int] = set()
        try:
            self._segments = self._opened(repairs=repairs)
        except OSError as error:
            raise JournalUnwritable(f"the journal {folder} cannot be opened: {error.strerror}") from None

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

    def latest(self, kind: RecordKind, *, tag: int | None, before: int, most: int) -> list[int]:
        """The requests below `before` that have such a record, newest first; with `tag`, those with that."""
        found: list[Numbers] = []
        for segment in self._copies():
            rows = self._rows(segment)
            hits = (rows["kind"] == kind) & (rows["number"] < before)
            found.append(rows["number"][hits if tag is None else hits & (rows["tag"] == tag)])
        numbers = _distinct(np.concatenate(found) if found else np.zeros(0, np.uint64))
        gone = np.array(sorted(self._gone()), np.uint64)
        return _without(numbers, gone)[::-1][:most].tolist()

    def read(self, numbers: Iterable[int], *kinds: RecordKind) -> dict[int, list[Record]]:
        """The records of requests in the order in which they were written; of these kinds, if any are named.

        What is damaged is left out, and with it what follows in its file.
        """
        wanted = np.array(sorted({*numbers} - self._gone()), np.uint64)
        found: dict[int, list[Record]] = {}
        for _ in range(TRIES):
            found = {int(number): [] for number in wanted}
            failed = [one for one in self._copies() if not self._read_into(found, one, wanted, kinds)]
            if not failed:
                break
            self._look_again()
        else:
            LOG.error("%s: records could not be read", self.folder)
        return found

    def _read_into(
        self, found: dict[int, list[Record]], segment: Segment, wanted: Numbers, kinds: tuple[RecordKind, ...]
    ) -> bool:
        """False where a record is not as it was."""
        try:
            with self._lock:
                if not any(one is segment for one in self._segments):
                    return False  # it was written anew
                rows, file = segment.rows, segment.path.open("rb")
            hits = np.isin(rows["number"], wanted)
            if kinds:
                hits &= np.isin(rows["kind"], kinds)
            for one in segment.read(rows[hits], self._cipher, file):
                found[one.number].append(one)
        except (JournalDamaged, OSError):
            return False
        return True

    def _look_again(self) -> None:
        """Files are not as they were: a server may have written them anew."""
        time.sleep(AGAIN_S)
        with suppress(OSError, HeadraceError), self._lock:
            self.damages = []
            self._segments = self._opened(repairs=False)

    def checked(self) -> list[Damage]:
        """Read every file as a whole, changing nothing; what is wrong with them."""
        found = [open_segment(one.path, grows=True, repairs=False)[1] for one in self._copies()[:-1]]
        return [one for one in found if one is not None]

    def _opened(self, *, repairs: bool) -> list[Segment]:
        paths = sorted(self._files(SUFFIX))
        found: list[Segment] = []
        for path in paths:
            segment, damage = open_segment(path, grows=path == paths[-1], repairs=repairs)
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

    def _files(self, suffix: str) -> list[Path]:
        """The files of the journal of that kind: whatever else is in the folder is not touched."""
        found = [one for one in self.folder.glob(f"*{suffix}") if _NAME.fullmatch(one.name)]
        for one in found:
            if one.is_symlink() or not one.is_file():
                raise JournalUnwritable(f"{one} is no file: it is none of a journal's, take it away")
        return found

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
