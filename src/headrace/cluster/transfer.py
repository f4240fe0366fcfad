"""KV pages on their way from one replica to another, as the front sees them (docs/decisions/0114)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from msgspec import Struct

from headrace.cluster.replica_link import ReplicaLink
from headrace.workers.protocol import (
    BeginImport,
    EndImport,
    ExportEnded,
    ExportPages,
    FinishExport,
    HotTexts,
    ImportEnded,
    ImportPart,
    ListHotTexts,
    PageReport,
    PagesExported,
    PartTaken,
    PrefixRoot,
    StopExport,
)

PATIENCE_S = 5.0
"""A transfer that makes no progress for so long is given up: what did not arrive is computed."""

Texts = list[tuple[PrefixRoot, int, tuple[int, ...]]]


class Transfer(Struct, eq=False):
    """One text's pages. `tokens_there` are in the target's prefix cache at its end. `exported_s` is when the
    source had given its last part."""

    number: int
    source: ReplicaLink
    target: ReplicaLink
    done: Callable[[Transfer], None]
    follows: bool
    began_s: float
    heard_s: float
    pages: int = 0
    under_way: int = 0  # parts
    exported_s: float = 0.0
    tokens_there: int = 0
    problem: str = ""


class Transfers:
    """Passes parts on, or where they are in shared memory; a replica or a message that is lost costs time
    alone. The caller has a lock, also while `done` is called."""

    def __init__(self, *, shares: bool) -> None:
        """`shares`: the replicas are processes of one machine."""
        self._shares = shares
        self._numbers = itertools.count()
        self._open: dict[int, Transfer] = {}
        self._lists: dict[int, tuple[ReplicaLink, Callable[[Texts], None]]] = {}

    def begin(
        self,
        source: ReplicaLink,
        target: ReplicaLink,
        root: PrefixRoot,
        tokens: tuple[int, ...],
        done: Callable[[Transfer], None],
        *,
        first: int = 0,
        follows: str = "",
        request: str = "",
    ) -> Transfer | None:
        """Move the full pages of a text from its page `first` on, as far as they are computed; those that the
        request `follows` computes until `finish`. None where the pages mean something else there."""
        own = source.ready.page_class
        if source is target or not own or own != target.ready.page_class:
            return None
        now_s = time.monotonic()
        number = next(self._numbers)
        found = Transfer(number, source, target, done, bool(follows), now_s, now_s)
        self._open[number] = found
        target.put(BeginImport(number, root, tokens, own.split("\n")[-1]))
        source.put(ExportPages(number, root, tokens, first, follows or request, bool(follows), self._shares))
        return found

    def finish(self, transfer: Transfer) -> None:
        """The source computes no more of it."""
        if transfer.number in self._open:
            transfer.follows = False
            transfer.heard_s = time.monotonic()
            transfer.source.put(FinishExport(transfer.number))

    def drop(self, transfer: Transfer) -> None:
        """Nobody waits for it any more; `done` is not called."""
        if self._open.pop(transfer.number, None) is not None:
            transfer.source.put(StopExport(transfer.number))
            transfer.target.put(EndImport(transfer.number))

    def list_hot(self, source: ReplicaLink, max_bytes: int, done: Callable[[Texts], None]) -> None:
        """The most recently used texts of a replica's prefix cache."""
        number = next(self._numbers)
        self._lists[number] = source, done
        source.put(ListHotTexts(number, max_bytes))

    def took(self, link: ReplicaLink, report: PageReport) -> None:
        """A replica's message. What does not belong to a transfer of it is left out."""
        if isinstance(report, HotTexts):
            source, told = self._lists.pop(report.move, (None, None))
            if source is link and told is not None:
                told(report.texts)
            return
        found = self._open.get(report.move)
        if found is None:
            return
        sends = isinstance(report, PagesExported | ExportEnded)
        if link is not (found.source if sends else found.target):
            return
        found.heard_s = time.monotonic()
        match report:
            case PagesExported(_, part) if part.place is not None and not self._shares:
                # Of another machine: there it would be a file of whichever process has that number.
                found.problem = "its pages are in memory of another machine"
                found.target.put(EndImport(found.number))
                self._end(found)
            case PagesExported(_, part):
                found.pages += part.count
                found.under_way += 1
                found.target.put(ImportPart(found.number, part))
            case ExportEnded(_, problem):
                found.exported_s, found.follows = found.heard_s, False
                found.problem = problem
                found.target.put(EndImport(found.number))
            case PartTaken():
                found.under_way -= 1
                found.source.put(PartTaken(found.number))
            case ImportEnded(_, tokens, problem):
                found.tokens_there, found.problem = tokens, problem or found.problem
                self._end(found)

    def lost(self, link: ReplicaLink) -> None:
        """A replica has ended: what has arrived of its pages is kept."""
        for number, (source, _) in list(self._lists.items()):
            if source is link:
                del self._lists[number]
        for found in list(self._open.values()):
            if found.target is link or found.source is link:
                found.problem = f"replica {link.number} has ended"
                if found.source is link:
                    found.target.put(EndImport(found.number))
                self._end(found)

    def expire(self, now_s: float) -> None:
        """Give up what waits for a replica that does not answer."""
        for found in list(self._open.values()):
            waits = found.under_way > 0 or not found.follows
            if waits and now_s - found.heard_s > PATIENCE_S:
                found.problem = f"no progress for {PATIENCE_S:g} s"
                found.target.put(EndImport(found.number))
                self._end(found)

    def _end(self, found: Transfer) -> None:
        if self._open.pop(found.number, None) is not None:
            found.source.put(StopExport(found.number))
            found.done(found)
