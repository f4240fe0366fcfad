"""API keys. Only a keyed hash is stored; the key itself is shown once."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.storage.sql_store import Row, SqlStore

KEY_PREFIX = "hr-"
_COLUMNS = "name, digest, created_s, requests_per_minute, tokens_per_minute, concurrency, scopes, priority"

Scope = Literal["infer", "alias", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""What a key may do: have models compute; make, change and delete aliases of its own; everything."""
INFER: frozenset[Scope] = frozenset({"infer"})


class KeyLimits(Struct, frozen=True):
    """Limits per minute, of concurrent requests, and of urgency: no request of the key gets a lower
    `priority`. None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int | None = None


class StoredKey(Struct, frozen=True):
    """An active key. `digest` is HMAC-SHA256 of the key under the database's secret."""

    name: str
    digest: bytes
    created_s: int
    limits: KeyLimits
    scopes: frozenset[Scope]


def digest_of(key: bytes, pepper: bytes) -> bytes:
    """The stored hash of a key. A key has 256 random bits, so a slow hash would add no protection."""
    return hmac.digest(pepper, key, "sha256")


class Keys:
    """The API keys in a database."""

    def __init__(self, database: SqlStore) -> None:
        self._database = database
        self._pepper: bytes | None = None

    def add(self, name: str, limits: KeyLimits, scopes: frozenset[Scope] = INFER) -> str:
        """Create a key and return it; it cannot be read again. The name must not be in use."""
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        digest = digest_of(key.encode(), self.pepper())
        with self._database.transaction():
            if any(one.name == name for one in self.all()):
                raise InvalidRequest(f"there is a key named {name!r}: choose another name", param="name")
            self._database.execute(
                f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    name,
                    digest,
                    int(time.time()),
                    limits.requests_per_minute,
                    limits.tokens_per_minute,
                    limits.concurrency,
                    ",".join(sorted(scopes)),
                    limits.priority,
                ),
            )
        return key

    def revoke(self, name: str) -> None:
        """Revoke a key, which is rejected from now on. Raises InvalidRequest if the name is unknown."""
        changed = self._database.execute(
            "UPDATE keys SET revoked_s = ? WHERE name = ? AND revoked_s IS NULL", (int(time.time()), name)
        )
        if not changed:
            names = ", ".join(repr(key.name) for key in self.all()) or "none"
            raise InvalidRequest(f"there is no key named {name!r} (there are: {names})", param="name")

    def all(self) -> list[StoredKey]:
        """The active keys, oldest first."""
        if not self._database.exists:
            return []
        rows = self._database.query(f"SELECT {_COLUMNS} FROM keys WHERE revoked_s IS NULL ORDER BY id")
        return [_stored(row) for row in rows]

    def ever(self) -> bool:
        """True if there ever was a key: revoking the last key must not make the server public."""
        return self._database.exists and bool(self._database.query("SELECT 1 FROM keys LIMIT 1"))

    def version(self) -> int:
        """A number that grows with each key that is added or revoked; 0 where there never was one. Nothing
        else of a key changes, and none is deleted."""
        if not self._database.exists:
            return 0
        [(added, revoked)] = self._database.query("SELECT count(*), count(revoked_s) FROM keys")
        return int(added or 0) + int(revoked or 0)

    def pepper(self) -> bytes:
        """The database's secret, created on first use. It never changes, so it is read only once."""
        if self._pepper is None:
            self._pepper = self._stored_pepper() or self._new_pepper()
        return self._pepper

    def _stored_pepper(self) -> bytes | None:
        rows = self._database.query("SELECT value FROM secrets WHERE name = 'key_pepper'")
        return bytes(rows[0][0]) if rows else None  # type: ignore[arg-type]

    def _new_pepper(self) -> bytes:
        with self._database.transaction():  # another process may have been faster
            self._database.execute(
                "INSERT INTO secrets VALUES ('key_pepper', ?) ON CONFLICT DO NOTHING",
                (secrets.token_bytes(32),),
            )
            return self._stored_pepper() or b""


def _stored(row: Row) -> StoredKey:
    name, digest, created_s, requests, tokens, concurrency, scopes, priority = row
    assert isinstance(name, str) and isinstance(digest, bytes) and isinstance(created_s, int)
    assert isinstance(scopes, str)
    limits = msgspec.convert((requests, tokens, concurrency, priority), tuple[int | None, ...])
    # A scope that this version does not know allows nothing here.
    known: frozenset[Scope] = frozenset(scope for scope in SCOPES if scope in scopes.split(","))
    return StoredKey(name, digest, created_s, KeyLimits(*limits), known)
