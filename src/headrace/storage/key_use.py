"""What keys have used, in a store that several servers share: a minute's units, and requests at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import cast

from headrace.storage.sql_store import SqlStore

LEASE_S = 15.0
"""How long requests count of a server that was not heard of."""


class KeyUse:
    """The use of the keys of all servers, of which this is one. Every call may raise StoreError."""

    def __init__(self, database: SqlStore) -> None:
        self._database, self._server = database, uuid.uuid4().hex
        self.clock = database.shared_clock or time.time
        """Seconds that go on alike for all servers."""

    def transaction(self) -> AbstractContextManager[object]:
        """What is read in it no other server changes before its end."""
        return self._database.transaction()

    def bucket(self, account: str, kind: str) -> tuple[float, float] | None:
        """The level of units, and when it was that."""
        rows = self._database.query(
            "SELECT level, at_s FROM key_buckets WHERE account = ? AND kind = ?", (account, kind)
        )
        return cast("tuple[float, float]", rows[0]) if rows else None

    def keep_bucket(self, account: str, kind: str, level: float, at_s: float) -> None:
        """Put it in place of the one before."""
        self._database.execute(
            "INSERT INTO key_buckets VALUES (?, ?, ?, ?) "
            "ON CONFLICT (account, kind) DO UPDATE SET level = excluded.level, at_s = excluded.at_s",
            (account, kind, level, at_s),
        )

    def open_calls(self, account: str) -> int:
        """Requests under way, of the other servers."""
        [(calls,)] = self._database.query(
            "SELECT coalesce(sum(calls), 0) FROM key_calls WHERE account = ? AND server != ? AND until_s > ?",
            (account, self._server, self.clock()),
        )
        return int(cast("int", calls))

    def keep_calls(self, account: str, calls: int) -> None:
        """How many of them are this server's."""
        self._database.execute(
            "INSERT INTO key_calls VALUES (?, ?, ?, ?) "
            "ON CONFLICT (account, server) DO UPDATE SET calls = excluded.calls, until_s = excluded.until_s",
            (account, self._server, calls, self.clock() + LEASE_S),
        )

    def still_open(self, calls: Mapping[str, int]) -> None:
        """This server is there, and these are its requests by account: some that have ended may not have been
        written. Forgets servers that have long been gone."""
        now_s = self.clock()
        with self._database.transaction():
            for account, count in calls.items():
                self.keep_calls(account, count)
            self._database.execute("DELETE FROM key_calls WHERE until_s < ?", (now_s - 3600,))
