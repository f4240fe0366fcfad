"""One write of an index in Qdrant, which has no transactions.

A write has a number. Points that it adds are `born` with it, those that it removes are `gone` with it, and
nobody sees either until the meta says that it has been done: one conditional change of one point, which is
the only moment that counts. A write that ends before it leaves points that no generation has; the next writer
deletes them, and what comes of them later is of a number that never was.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from qdrant_client import QdrantClient, models

from headrace.errors import StoreError
from headrace.search.index import IndexBusy
from headrace.search.qdrant.records import (
    FREE,
    META_ID,
    OPEN,
    PREFIX,
    MetaRecord,
    Snapshot,
    needed_meta,
    one_of,
    within,
)

WAIT_S = 5.0
"""For another writer that goes on."""
LEASE_S = 10.0
"""After so long without a sign of life a writer is taken for dead."""
_POLL_S = 0.05
_KEPT = 64
"""Numbers of writes that never were that are remembered."""


class QdrantWrite:
    """A write that has begun."""

    def __init__(self, client: QdrantClient, name: str, token: str, meta: MetaRecord) -> None:
        self.snapshot = Snapshot(client, name, meta)
        self.number = meta.attempt
        self._client, self._name, self._token = client, name, token
        self._beaten_s = time.monotonic()
        self.is_done = False
        self._has_new = meta.commit + 1 < meta.attempt
        new = range(max(meta.commit + 1, meta.attempt - _KEPT), meta.attempt)
        self._aborted = [*meta.aborted, *new][-_KEPT:]

    @property
    def meta(self) -> MetaRecord:
        """As it was when the write began."""
        return self.snapshot.meta

    def clean(self, *, always: bool = False) -> None:
        """Undo what writes have left behind that were not done."""
        if not self._has_new and not (always and self._aborted):
            return
        for collection in self._collections():
            self.delete(collection, models.Filter(should=self._lost("born")))
            self._set(collection, {"gone": OPEN}, models.Filter(should=self._lost("gone")))

    def remove(self, collection: str, chosen: Sequence[models.Condition]) -> None:
        """Have points be gone, with this write, that nobody else has removed."""
        self.beat()
        there = models.Filter(should=[one_of("gone", OPEN), *self._lost("gone")])
        must: list[models.Condition] = [there, within("born", lte=self.meta.commit), *chosen]
        self._set(collection, {"gone": self.number}, models.Filter(must=must))

    def add(self, collection: str, points: list[models.PointStruct]) -> None:
        """Add points."""
        self.beat()
        self._done(self._client.upsert(collection, points, wait=True, ordering=models.WriteOrdering.STRONG))

    def sweep(self) -> None:
        """Delete points that are gone. Readers of generations that had them look once more."""
        commit = self.meta.commit
        self._change({"swept": commit})
        self.clean(always=True)
        for collection in self._collections():
            self.beat()
            # What a late write has removed since is there.
            gone = models.Filter(must=[within("gone", lte=commit)], must_not=self._lost("gone"))
            self.delete(collection, gone)

    def delete(self, collection: str, chosen: models.Filter) -> None:
        """Delete points."""
        self._done(
            self._client.delete(
                collection,
                models.FilterSelector(filter=chosen),
                wait=True,
                ordering=models.WriteOrdering.STRONG,
            )
        )

    def commit(self, **changed: Any) -> None:
        """Make it count, with these fields of the meta."""
        done = {"commit": self.number, "aborted": self._aborted, "lock": FREE, **changed}
        self._change(done, is_last=True)
        self.is_done = True

    def beat(self) -> None:
        """Say now and then that it goes on; IndexBusy where another writes instead."""
        if time.monotonic() - self._beaten_s > LEASE_S / 5:
            self._change({"beat": secrets.randbits(32)})
            self._beaten_s = time.monotonic()

    def end(self) -> None:
        """Let others write, whatever has become of it."""
        self._set(PREFIX + self._name, {"lock": FREE}, self._mine())

    def _change(self, fields: dict[str, Any], *, is_last: bool = False) -> None:
        """Change the meta while this write has it; IndexBusy where it has not any more."""
        self._set(PREFIX + self._name, fields, self._mine())
        found = needed_meta(self._client, self._name)
        if is_last:  # others may have written since
            is_done = found.commit >= self.number and self.number not in found.aborted
        else:
            is_done = found.attempt == self.number
        if not is_done or found.made != self.meta.made:
            raise IndexBusy(
                f"the index {self._name} is being written by another program: try again later", reason="index"
            )

    def _lost(self, field: str) -> list[models.Condition]:
        """Points whose field has the number of a write that never was, or of one that ended before this."""
        found: list[models.Condition] = [within(field, gt=self.meta.commit, lt=self.number)]
        return [*found, one_of(field, *self._aborted)] if self._aborted else found

    def _mine(self) -> models.Filter:
        return _meta_where(self._token, self.number)

    def _collections(self) -> list[str]:
        return [PREFIX + self._name, *([self.meta.within] if self.meta.within else [])]

    def _set(self, collection: str, fields: dict[str, Any], chosen: models.Filter) -> None:
        self._done(_set_payload(self._client, collection, fields, chosen))

    def _done(self, result: models.UpdateResult) -> None:
        if result.status != models.UpdateStatus.COMPLETED:
            raise StoreError(f"the Qdrant server of the index {self._name} has not done a change: try again")


@contextmanager
def writing(client: QdrantClient, name: str, *, cleans: bool = True) -> Generator[QdrantWrite]:
    """The one write at a time; IndexBusy while there is another. What is not committed never was, and is
    undone first unless `cleans` is false."""
    token = secrets.token_hex(16)
    write = QdrantWrite(client, name, token, _taken(client, name, token))
    try:
        if cleans:
            write.clean()
        yield write
    finally:
        if not write.is_done:
            with suppress(Exception):
                write.end()


def _taken(client: QdrantClient, name: str, token: str) -> MetaRecord:
    """The meta as it is with the lock of this token."""
    begin_s = since_s = time.monotonic()
    seen: tuple[str, int] | None = None
    while True:
        meta = needed_meta(client, name)
        now_s = time.monotonic()
        if (meta.lock, meta.beat) != seen:
            seen, since_s = (meta.lock, meta.beat), now_s
        if meta.lock == FREE or now_s - since_s >= LEASE_S:
            _set_payload(
                client,
                PREFIX + name,
                {"lock": token, "attempt": meta.attempt + 1, "beat": 0},
                _meta_where(meta.lock, meta.attempt),
            )
            taken = needed_meta(client, name)
            if taken.lock == token:
                return taken
        elif now_s - begin_s > WAIT_S and since_s - begin_s > _POLL_S:
            break
        if now_s - begin_s > WAIT_S + LEASE_S:
            break
        time.sleep(_POLL_S)
    raise IndexBusy(
        f"the index {name} is being written by another program or request: try again later", reason="index"
    )


def _meta_where(lock: str, attempt: int) -> models.Filter:
    return models.Filter(
        must=[models.HasIdCondition(has_id=[META_ID]), one_of("lock", lock), one_of("attempt", attempt)]
    )


def _set_payload(
    client: QdrantClient, collection: str, fields: dict[str, Any], chosen: models.Filter
) -> models.UpdateResult:
    return client.set_payload(
        collection,
        fields,
        points=models.FilterSelector(filter=chosen),
        wait=True,
        ordering=models.WriteOrdering.STRONG,
    )
