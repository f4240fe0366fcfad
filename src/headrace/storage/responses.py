"""Stored responses (Responses API): input and output items of each, for the API key that created it.

A response is kept for `KEPT_S` after it was last used (created or continued), and each owner has at most
`KEPT_BYTES`; beyond that, the least recently used are deleted. A response in progress is never deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.storage.sql_store import Row, SqlStore

KEPT_S = 30 * 86_400.0
KEPT_BYTES = 256 * 2**20
PRUNE_BYTES = 16 * 2**20  # added between two checks of each owner's total
CHAIN_BYTES = 64 * 2**20  # per conversation; no context is this long
STALE_S = 10.0
"""A response whose server has not updated it for this long is no longer in progress."""

_ENDED = "status NOT IN ('queued', 'in_progress')"
_COLUMNS = "id, owner, status, previous_id, alive_s, body"


class StoredItem(Struct, frozen=True):
    """An item; `body` is its JSON."""

    id: str
    body: bytes


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A stored response; `body` is its JSON without the output. `alive_s`: last update by its server."""

    id: str
    owner: str
    status: str
    previous_id: str | None
    alive_s: float
    body: bytes


class Responses:
    """The responses in a database. `clock` returns wall-clock seconds."""

    def __init__(self, database: SqlStore, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._unpruned_bytes = PRUNE_BYTES

    def add(
        self, response_id: str, owner: str, status: str, previous_id: str | None, body: bytes,
        inputs: Sequence[StoredItem],
    ) -> None:  # fmt: skip
        """Store a new response, and delete responses that are too old or exceed the owner's limit."""
        now_s = self._clock()
        size = len(body) + sum(len(item.body) for item in inputs)
        with self._database.transaction():
            self._prune(now_s, size)
            # One that goes on after a restart is there as it was begun.
            self._database.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
            self._database.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (response_id, owner, status, previous_id, now_s, now_s, size, body),
            )
            self._add_items(response_id, 0, inputs)

    def finish(
        self,
        response_id: str,
        status: str,
        body: bytes,
        output: Sequence[StoredItem],
        events: Sequence[bytes],
    ) -> None:
        """Store the result of a response; no effect if it was deleted meanwhile."""
        size = len(body) + sum(len(item.body) for item in output) + sum(map(len, events))
        self._unpruned_bytes += size
        with self._database.transaction():
            changed = self._database.execute(
                "UPDATE responses SET status = ?, body = ?, size_bytes = size_bytes + ? WHERE id = ?",
                (status, body, size, response_id),
            )
            if changed:
                self._database.execute("DELETE FROM response_cancels WHERE response_id = ?", (response_id,))
                self._add_items(response_id, 1, output)
                self._database.execute_many(
                    "INSERT INTO response_events VALUES (?, ?, ?)",
                    [(response_id, number, data) for number, data in enumerate(events)],
                )

    def fail_stale(self, response: StoredResponse, body: bytes) -> None:
        """Record that a response has failed whose server has stopped. No effect where that has been heard of
        again, or has stored the result meanwhile."""
        with self._database.transaction():
            if self._database.execute(
                "UPDATE responses SET status = 'failed', body = ?, size_bytes = size_bytes + ? "
                f"WHERE id = ? AND alive_s = ? AND NOT ({_ENDED})",
                (body, len(body), response.id, response.alive_s),
            ):
                self._database.execute("DELETE FROM response_cancels WHERE response_id = ?", (response.id,))

    def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """The owner's response with this id."""
        if not self._database.exists:
            return None
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
        )
        return _stored(rows[0]) if rows else None

    def items(self, response_id: str, *, output: bool) -> list[StoredItem]:
        """The input or output items, in order."""
        rows = self._database.query(
            "SELECT id, body FROM response_items WHERE response_id = ? AND is_output = ? ORDER BY position",
            (response_id, int(output)),
        )
        return [_item(row) for row in rows]

    def item(self, owner: str, item_id: str) -> StoredItem | None:
        """The owner's item with this id; the most recently used if there are several."""
        if not self._database.exists:
            return None
        rows = self._database.query(
            "SELECT item.id, item.body FROM response_items item JOIN responses ON responses.id = response_id "
            "WHERE item.id = ? AND owner = ? ORDER BY used_s DESC LIMIT 1",
            (item_id, owner),
        )
        return _item(rows[0]) if rows else None

    def chain(self, owner: str, response_id: str) -> list[StoredResponse]:
        """The response and all that it continues, oldest first. All count as used now.

        The oldest may continue a response that is no longer stored. Raises InvalidRequest if the total is
        too large.
        """
        found: list[StoredResponse] = []
        if not self._database.exists:
            return found
        size, next_id = 0, response_id
        with self._database.transaction():
            while response := self.find(owner, next_id):
                found.append(response)
                self._database.execute(
                    "UPDATE responses SET used_s = ? WHERE id = ?", (self._clock(), response.id)
                )
                size += self._size(response.id)
                if size > CHAIN_BYTES:
                    raise InvalidRequest(
                        f"the conversation up to {response_id} has more than {CHAIN_BYTES:,} bytes, which is "
                        "more than any model reads: begin a new one",
                        param="previous_response_id",
                    )
                if response.previous_id is None:
                    break
                next_id = response.previous_id
        return found[::-1]

    def events(self, response_id: str, after: int) -> list[bytes]:
        """Events of its stream with numbers above `after`; empty if its events were not stored."""
        rows = self._database.query(
            "SELECT data FROM response_events WHERE response_id = ? AND number > ? ORDER BY number",
            (response_id, after),
        )
        return [data for (data,) in rows if isinstance(data, bytes)]

    def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; True if it existed. Its text is then erased from the file."""
        if not self._database.exists:
            return False
        with self._database.transaction():
            deleted = self._database.execute(
                "DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
            )
        if deleted:
            self._database.erase_deleted()
            self._database.erase_copies()
        return bool(deleted)

    def still_made(self, response_ids: Sequence[str]) -> set[str]:
        """Record that this server is still working on these responses; those that it is to stop, since
        another server was asked to cancel or has deleted them."""
        with self._database.transaction():
            now_s, alive = self._clock(), "UPDATE responses SET alive_s = ? WHERE id = ?"
            gone = {one for one in response_ids if not self._database.execute(alive, (now_s, one))}
            rows = self._database.query("SELECT response_id FROM response_cancels")
        return gone | ({str(one) for (one,) in rows} & set(response_ids))

    def ask_cancel(self, response_id: str) -> None:
        """Have the server stop that makes a response."""
        self._database.execute(
            "INSERT INTO response_cancels SELECT id FROM responses WHERE id = ? ON CONFLICT DO NOTHING",
            (response_id,),
        )

    def stale(self, response: StoredResponse) -> bool:
        """True if the server that was working on the response has stopped."""
        return response.alive_s < self._clock() - STALE_S

    def _size(self, response_id: str) -> int:
        [(size,)] = self._database.query("SELECT size_bytes FROM responses WHERE id = ?", (response_id,))
        return int(size or 0)

    def _add_items(self, response_id: str, is_output: int, items: Sequence[StoredItem]) -> None:
        self._database.execute_many(
            "INSERT INTO response_items VALUES (?, ?, ?, ?, ?)",
            [(response_id, is_output, position, item.id, item.body) for position, item in enumerate(items)],
        )

    def _prune(self, now_s: float, added_bytes: int) -> None:
        self._database.execute(f"DELETE FROM responses WHERE used_s < ? AND {_ENDED}", (now_s - KEPT_S,))
        self._unpruned_bytes += added_bytes
        if self._unpruned_bytes < PRUNE_BYTES:
            return
        self._unpruned_bytes = 0
        self._database.execute(
            # Each owner's responses, most recently used first, with their cumulative size in bytes.
            f"""DELETE FROM responses WHERE {_ENDED} AND id IN (
                SELECT id FROM (
                    SELECT id, SUM(size_bytes) OVER (PARTITION BY owner ORDER BY used_s DESC, id) AS total
                    FROM responses
                ) AS summed WHERE total > ?
            )""",
            (KEPT_BYTES,),
        )


def _stored(row: Row) -> StoredResponse:
    response_id, owner, status, previous_id, alive_s, body = row
    assert isinstance(response_id, str) and isinstance(owner, str) and isinstance(status, str)
    assert isinstance(previous_id, str | None) and isinstance(alive_s, float) and isinstance(body, bytes)
    return StoredResponse(
        id=response_id, owner=owner, status=status, previous_id=previous_id, alive_s=alive_s, body=body
    )


def _item(row: Row) -> StoredItem:
    item_id, body = row
    assert isinstance(item_id, str) and isinstance(body, bytes)
    return StoredItem(item_id, body)
