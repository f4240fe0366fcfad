"""Files uploaded by clients or generated for them, stored in parts; each belongs to one owner."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator

from msgspec import Struct

from headrace.storage.sql_store import Row, SqlStore, Value

PART_BYTES = 2**20


class StoredFile(Struct, frozen=True):
    """Metadata of a file. Times are seconds since 1970; after `expires_s` the file is gone."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_s: int
    expires_s: int | None


_COLUMNS = ", ".join(StoredFile.__struct_fields__)
_THERE = "unfinished_of IS NULL AND (expires_s IS NULL OR expires_s > ?)"


class Files:
    """The files in a database."""

    def __init__(self, database: SqlStore) -> None:
        self._database = database

    def add(
        self, owner: str, filename: str, purpose: str, parts: Iterable[bytes], *, expires_after_s: int | None
    ) -> StoredFile:
        """Store a file from its parts, atomically."""
        with self._database.transaction():
            file_id = self.begin(owner, filename, purpose, "upload", expires_after_s=expires_after_s)
            for place, data in enumerate(parts):
                self.append(file_id, place, data)
            self.finish(file_id)
        found = self.get(owner, file_id)
        assert found is not None
        return found

    def begin(
        self, owner: str, filename: str, purpose: str, maker: str, *, expires_after_s: int | None
    ) -> str:
        """Begin a file that `maker` writes in parts; returns its id. It is not visible before `finish`."""
        now_s, file_id = int(time.time()), f"file-{uuid.uuid4().hex}"
        expires_s = None if expires_after_s is None else now_s + expires_after_s
        self._database.execute(
            f"INSERT INTO files ({_COLUMNS}, unfinished_of) VALUES (?, ?, ?, ?, 0, ?, ?, ?)",
            (file_id, owner, filename, purpose, now_s, expires_s, maker),
        )
        return file_id

    def append(self, file_id: str, place: int, data: bytes) -> None:
        """Write the part at `place` of an unfinished file."""
        with self._database.transaction():
            self._database.execute("UPDATE files SET bytes = bytes + ? WHERE id = ?", (len(data), file_id))
            self._database.execute(
                "INSERT INTO file_parts SELECT number, ?, ? FROM files WHERE id = ?", (place, data, file_id)
            )

    def finish(self, file_id: str) -> bool:
        """Mark the file as complete and make it visible; whether it is there."""
        return self._database.execute("UPDATE files SET unfinished_of = NULL WHERE id = ?", (file_id,)) > 0

    def forget_unfinished(self, maker: str) -> None:
        """Delete files that `maker` began and did not finish."""
        self._database.execute("DELETE FROM files WHERE unfinished_of = ?", (maker,))

    def get(self, owner: str, file_id: str) -> StoredFile | None:
        """The owner's file with this id; None if there is none."""
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM files WHERE owner = ? AND id = ? AND {_THERE}",
            (owner, file_id, time.time()),
        )
        return _stored(rows[0]) if rows else None

    def page(
        self, owner: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """Up to `limit` of the owner's files, starting after `after`."""
        comes, order = ("<", "DESC") if newest_first else (">", "ASC")
        where = f"owner = ? AND {_THERE}"
        values: list[Value] = [owner, time.time()]
        if purpose is not None:
            where += " AND purpose = ?"
            values.append(purpose)
        if after is not None:
            where += f" AND number {comes} (SELECT number FROM files WHERE id = ? AND owner = ?)"
            values += [after, owner]
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM files WHERE {where} ORDER BY number {order} LIMIT ?", (*values, limit)
        )
        return [_stored(row) for row in rows]

    def parts(self, file_id: str) -> Iterator[bytes]:
        """The content, part by part; it ends early if the file is deleted meanwhile."""
        place = 0
        while rows := self._database.query(
            "SELECT data FROM file_parts WHERE file = (SELECT number FROM files WHERE id = ?) AND place = ?",
            (file_id, place),
        ):
            [(data,)] = rows
            assert isinstance(data, bytes)
            yield data
            place += 1

    def delete(self, owner: str, file_id: str) -> bool:
        """Delete one of the owner's files; True if it existed."""
        if self.get(owner, file_id) is None:
            return False
        return self._database.execute("DELETE FROM files WHERE owner = ? AND id = ?", (owner, file_id)) > 0

    def forget_expired(self) -> None:
        """Delete files that have expired."""
        self._database.execute("DELETE FROM files WHERE expires_s <= ?", (time.time(),))

    def total_bytes(self, owner: str) -> int:
        """Total size of an owner's files, in bytes."""
        rows = self._database.query("SELECT SUM(bytes) FROM files WHERE owner = ?", (owner,))
        return int(rows[0][0] or 0)


def _stored(row: Row) -> StoredFile:
    return StoredFile(*row)  # type: ignore[arg-type]
