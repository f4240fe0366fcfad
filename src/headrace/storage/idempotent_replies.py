"""Replies to requests with an Idempotency-Key, kept for a day in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import Struct

from headrace.storage.sql_store import SqlStore

KEPT_S = 24 * 3600.0
MAX_BYTES = 256 * 2**20
"""Of all replies together; the oldest go first."""


class KeptReply(Struct, frozen=True):
    """A whole reply, and what tells whether a request is the one that it answers.

    `digest` is the request body's, of `body_bytes` without the boundaries of a form; b"" of older versions'
    forms. `extra` are the headers that the server adds to every reply of a request, such as what it cost.
    """

    digest: bytes
    body_bytes: int
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    extra: dict[str, str]
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KeptReply)


class IdempotentReplies:
    """Replies by place: a digest of who asked, for what, with which key. Every call may raise StoreError."""

    def __init__(self, database: SqlStore) -> None:
        self._database = database

    def find(self, place: bytes) -> KeptReply | None:
        """The reply that is kept there, if any."""
        if not self._database.exists:
            return None
        rows = self._database.query(
            "SELECT reply FROM idempotent_replies WHERE place = ? AND created_s > ?",
            (place, time.time() - KEPT_S),
        )
        return _decoder.decode(cast(bytes, rows[0][0])) if rows else None

    def forget(self, nonces: Sequence[str]) -> None:
        """Delete the replies that have an id made of one of these, also from the file."""
        if not self._database.exists or not nonces:
            return
        deleted = [
            self._database.execute(
                "DELETE FROM idempotent_replies WHERE instr(reply, ?) > 0", (nonce.encode(),)
            )
            for nonce in nonces
        ]
        if any(deleted):
            self._database.erase_deleted()

    def add(self, place: bytes, reply: KeptReply) -> None:
        """Keep a reply; those that are too old, or too many, go."""
        data, now_s = _encoder.encode(reply), time.time()
        with self._database.transaction():
            self._database.execute("DELETE FROM idempotent_replies WHERE created_s <= ?", (now_s - KEPT_S,))
            self._database.execute(
                "INSERT INTO idempotent_replies (place, created_s, size_bytes, reply) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (place) DO UPDATE SET created_s = excluded.created_s, "
                "size_bytes = excluded.size_bytes, reply = excluded.reply",
                (place, now_s, len(data), data),
            )
            self._database.execute(
                """DELETE FROM idempotent_replies WHERE place IN (
                    SELECT place FROM (
                        SELECT place, sum(size_bytes) OVER (ORDER BY created_s DESC, place) AS up_to_it
                        FROM idempotent_replies
                    ) AS summed WHERE up_to_it > ?)""",
                (MAX_BYTES,),
            )
