"""Batch jobs: their lines (requests), the state of each line, and its result."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct

from headrace.storage.sql_store import Row, SqlStore, Value


class LineState(IntEnum):
    """State of a line. UNFINISHED: the batch ended before the line ran. SENT: a provider's batch has it."""

    PENDING = 0
    COMPLETED = 1
    FAILED = 2
    UNFINISHED = 3
    SENT = 4


class StoredBatch(Struct, frozen=True):
    """A batch. Times are seconds since 1970.

    `status` is in_progress, cancelling, finalizing, and finally the `outcome`: completed, expired or
    cancelled. `outcome` is set as soon as no further line will run. `completed` and `failed` count lines.
    `hops` are the servers that the request for it has passed.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str | None
    files_expire_after_s: int | None
    status: str
    outcome: str | None
    created_s: int
    expires_s: int
    cancelling_s: int | None
    finalizing_s: int | None
    ended_s: int | None
    output_file_id: str | None
    error_file_id: str | None
    total: int
    completed: int
    failed: int
    usage: str | None
    hops: str = ""


class Line(Struct, frozen=True):
    """A line of a batch; `reply` is the line for the output file."""

    place: int
    custom_id: str | None
    body: bytes | None
    state: LineState = LineState.PENDING
    reply: bytes | None = None


_COLUMNS = StoredBatch.__struct_fields__
_COUNTS = {
    name: f"COALESCE({name}, (SELECT COUNT(*) FROM batch_lines WHERE batch = batches.id AND {states}))"
    for name, states in (("completed", "state = 1"), ("failed", "state IN (2, 3)"))
}
_SELECT = "SELECT " + ", ".join(_COUNTS.get(name, name) for name in _COLUMNS) + " FROM batches"


class Batches:
    """The batches in a database."""

    def __init__(self, database: SqlStore, prefix: str = "batch") -> None:
        """`prefix` is the id prefix of one API's batches; batches of other APIs are not visible."""
        self._database, self._prefix = database, prefix
        self._is_own = f"substr(id, 1, {len(prefix) + 1}) = '{prefix}_'"

    def add(
        self,
        owner: str,
        lines: Iterable[Line],
        *,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        window_s: int,
        metadata: str | None,
        files_expire_after_s: int | None,
        hops: str = "",
    ) -> StoredBatch:
        """Store a batch with its lines; invalid lines already have their replies."""
        batch_id, now_s = f"{self._prefix}_{uuid.uuid4().hex}", int(time.time())
        values = (batch_id, owner, endpoint, input_file_id, completion_window, metadata, files_expire_after_s)
        with self._database.transaction():
            self._database.execute(
                f"""INSERT INTO batches ({", ".join(_COLUMNS[:7])}, status, created_s, expires_s, total, hops)
                VALUES (?, ?, ?, ?, ?, ?, ?, 'in_progress', ?, ?, 0, ?)""",
                (*values, now_s, now_s + window_s, hops),
            )
            self._database.execute_many(
                "INSERT INTO batch_lines VALUES (?, ?, ?, ?, ?, ?)",
                [(batch_id, one.place, one.custom_id, one.body, int(one.state), one.reply) for one in lines],
            )
            self._database.execute(
                "UPDATE batches SET total = (SELECT COUNT(*) FROM batch_lines WHERE batch = id) WHERE id = ?",
                (batch_id,),
            )
        found = self.get(owner, batch_id)
        assert found is not None
        return found

    def get(self, owner: str, batch_id: str) -> StoredBatch | None:
        """The owner's batch with this id; None if there is none."""
        if not batch_id.startswith(self._prefix + "_"):
            return None
        rows = self._database.query(f"{_SELECT} WHERE owner = ? AND id = ?", (owner, batch_id))
        return _stored(rows[0]) if rows else None

    def page(
        self, owner: str, *, after: str | None, before: str | None = None, limit: int
    ) -> list[StoredBatch]:
        """Up to `limit` of the owner's batches, newest first: of those after `after` and before `before`, the
        ones next to `before` where it is given, else next to `after`."""
        backwards = before is not None
        values: list[Value] = [owner]
        where = f"owner = ? AND {self._is_own}"
        for edge, comes in ((after, "<"), (before, ">")):
            if edge is not None:
                where += f" AND number {comes} (SELECT number FROM batches WHERE id = ? AND owner = ?)"
                values += [edge, owner]
        order = "ASC" if backwards else "DESC"
        rows = self._database.query(
            f"{_SELECT} WHERE {where} ORDER BY number {order} LIMIT ?", (*values, limit)
        )
        found = [_stored(row) for row in rows]
        return found[::-1] if backwards else found

    def open(self) -> list[StoredBatch]:
        """Batches of all owners that have not ended, oldest first."""
        return [
            _stored(row) for row in self._database.query(f"{_SELECT} WHERE ended_s IS NULL ORDER BY number")
        ]

    def cancel(self, owner: str, batch_id: str) -> StoredBatch | None:
        """Request cancellation of one of the owner's batches; None if there is none with this id."""
        self._database.execute(
            "UPDATE batches SET status = 'cancelling', cancelling_s = ? "
            f"WHERE owner = ? AND id = ? AND {self._is_own} AND status = 'in_progress'",
            (int(time.time()), owner, batch_id),
        )
        return self.get(owner, batch_id)

    def delete(self, owner: str, batch_id: str) -> None:
        """Remove one of `owner`'s batches that has ended; its result files stay until they expire."""
        self._database.execute(
            "DELETE FROM batches WHERE owner = ? AND id = ? AND ended_s IS NOT NULL", (owner, batch_id)
        )

    def pending(self, batch_id: str, *, after: int, limit: int) -> list[Line]:
        """The next lines to run, in order."""
        rows = self._database.query(
            "SELECT place, custom_id, body FROM batch_lines "
            "WHERE batch = ? AND state = 0 AND place > ? ORDER BY place LIMIT ?",
            (batch_id, after, limit),
        )
        return [Line(*row) for row in rows]  # type: ignore[arg-type]

    def record(self, batch_id: str, place: int, state: LineState, reply: bytes) -> None:
        """Store the result of a line. The line does not run again."""
        self._database.execute(
            "UPDATE batch_lines SET state = ?, reply = ?, body = NULL "
            "WHERE batch = ? AND place = ? AND state = 0",
            (int(state), reply, batch_id, place),
        )

    def close(self, batch_id: str, outcome: str) -> None:
        """No further line will run: mark the remaining ones as unfinished."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE batch_lines SET state = 3, body = NULL WHERE batch = ? AND state IN (0, 4)",
                (batch_id,),
            )
            self._database.execute(
                """UPDATE batches SET outcome = ?, finalizing_s = ?,
                status = CASE status WHEN 'in_progress' THEN 'finalizing' ELSE status END
                WHERE id = ? AND ended_s IS NULL""",
                (outcome, int(time.time()), batch_id),
            )

    def ended_lines(self, batch_id: str, *, after: int, limit: int) -> list[Line]:
        """The next lines that have run or are unfinished, in order."""
        rows = self._database.query(
            "SELECT place, custom_id, state, reply FROM batch_lines "
            "WHERE batch = ? AND state > 0 AND place > ? ORDER BY place LIMIT ?",
            (batch_id, after, limit),
        )
        return [
            Line(place, custom_id, None, LineState(state), reply)  # type: ignore[arg-type]
            for place, custom_id, state, reply in rows
        ]

    def publish(
        self, batch_id: str, *, output_file_id: str | None, error_file_id: str | None, usage: str | None
    ) -> bool:
        """Mark the batch as ended, with complete files; delete its lines, which are now in the files. No
        effect on a batch that has already ended: False.
        """
        with self._database.transaction():
            ended = self._database.execute(
                f"""UPDATE batches SET status = outcome, ended_s = ?, output_file_id = ?, error_file_id = ?,
                usage = ?, completed = {_COUNTS["completed"]}, failed = {_COUNTS["failed"]}
                WHERE id = ? AND ended_s IS NULL""",
                (int(time.time()), output_file_id, error_file_id, usage, batch_id),
            )
            for table in ("batch_lines", "provider_lines", "provider_jobs"):
                self._database.execute(f"DELETE FROM {table} WHERE batch = ?", (batch_id,))
            return ended > 0


def _stored(row: Row) -> StoredBatch:
    return StoredBatch(*row)  # type: ignore[arg-type]
