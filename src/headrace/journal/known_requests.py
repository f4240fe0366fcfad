"""What a log has of requests that had not ended when their server was killed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct, field

from headrace.journal.reader import LogReader, RecordKind
from headrace.journal.records import Batch, OpenedRequest, RunBegun, decode_batch
from headrace.journal.segment import Record

LOG = logging.getLogger("headrace.journal")


class KnownRun(Struct):
    """A run as far as it is recorded."""

    number: int
    fingerprint: str
    batches: list[Batch] = field(default_factory=list[Batch])


class KnownRequest(Struct):
    """A request that had not ended when its server was killed."""

    number: int
    opened: OpenedRequest
    runs: list[tuple[bytes, KnownRun]]
    next_tag: int
    has_gap: bool = False
    """Whether there are records after one that is lost."""
    times_s: list[float] = field(default_factory=list[float])
    """Moments that clients may have been told."""


def known_requests(log: LogReader, numbers: Iterable[int]) -> Iterable[KnownRequest]:
    """Requests as far as they are recorded; of one whose opening is damaged nothing."""
    for number, records in log.read(numbers).items():
        try:
            found = _known(number, records)
        except (ValueError, LookupError) as error:
            LOG.error("a record of request %d cannot be read: %s", number, error)
            continue
        if found is not None:
            yield found


def _known(number: int, records: Sequence[Record]) -> KnownRequest | None:
    first = next((one for one in records if one.kind == RecordKind.OPENED), None)
    if first is None:
        return None
    opened = msgspec.msgpack.decode(first.payload, type=OpenedRequest)
    found, has_gap = in_order(records)
    runs: dict[int, tuple[bytes, KnownRun]] = {}
    for one in found:
        if one.kind == RecordKind.RUN:
            begun = msgspec.msgpack.decode(one.payload, type=RunBegun)
            runs[begun.run] = begun.key, KnownRun(begun.run, begun.fingerprint)
        else:
            run, batch = decode_batch(one.payload)
            runs[run][1].batches.append(batch)
    times_s = {one.tag: float(one.payload) for one in records if one.kind == RecordKind.TIMED}
    told = [times_s[place] for place in range(len(times_s)) if place in times_s]
    return KnownRequest(number, opened, list(runs.values()), len(found), has_gap, told)


def in_order(records: Sequence[Record]) -> tuple[list[Record], bool]:
    """Runs and events up to the first that is lost, each once; and whether others come after that one."""
    found: list[Record] = []
    has_gap = False
    for one in records:
        if one.kind == RecordKind.RESTARTED:
            del found[one.tag :]
            has_gap = False
        elif one.kind in (RecordKind.RUN, RecordKind.EVENTS) and one.tag >= len(found):
            has_gap = has_gap or one.tag > len(found)
            if not has_gap:
                found.append(one)
    return found, has_gap
