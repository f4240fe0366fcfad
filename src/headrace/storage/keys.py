"""API keys. Only a keyed hash is stored; the key itself is shown once."""

from __future__ import annotations

import hmac
import secrets
import time

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.storage.database import Database, Row

KEY_PREFIX = "hr-"
_COLUMNS = "name, digest, created_s, requests_per_minute, tokens_per_minute, concurrency"


class KeyLimits(Struct, frozen=True):
    """Limits per minute, and of concurrent requests; None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class StoredKey(Struct, frozen=True):
    """An active key. `digest` is HMAC-SHA256 of the key under the database's secret."""

    name: str
    digest: bytes
    created_s: int
    limits: KeyLimits


def digest_of(key: bytes, pepper: bytes) -> bytes:
    """The stored hash of a key. A key has 256 random bits, so a slow hash would add no protection."""
    return hmac.digest(pepper, key, "sha256")


class Keys:
    """The API keys in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pepper: bytes | None = None

    def add(self, name: str, limits: KeyLimits) -> str:
        """Create a key and return it; it cannot be read again. The name must not be in use."""
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        digest = digest_of(key.encode(), self.pepper())
        with self._database.transaction():
            if any(one.name == name for one in self.all()):
                raise InvalidRequest(f"there is a key named {name!r}: choose another name", param="name")
            self._database.execute(
                f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    name,
                    digest,
                    int(time.time()),
                    limits.requests_per_minute,
                    limits.tokens_per_minute,
                    limits.concurrency,
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
        """A number that changes when another connection has changed the database."""
        if not self._database.exists:
            return 0
        return int(self._database.query("PRAGMA data_version")[0][0] or 0)

    def pepper(self) -> bytes:
        """The database's secret, created on first use. It never changes, so it is read only once."""
        if self._pepper is not None:
            return self._pepper
        with self._database.transaction():
            self._database.execute(
                "INSERT OR IGNORE INTO secrets VALUES ('key_pepper', ?)", (secrets.token_bytes(32),)
            )
            (value,) = self._database.query("SELECT value FROM secrets WHERE name = 'key_pepper'")[0]
        assert isinstance(value, bytes)
        self._pepper = value
        return value


def _stored(row: Row) -> StoredKey:
    name, digest, created_s, requests, tokens, concurrency = row
    assert isinstance(name, str) and isinstance(digest, bytes) and isinstance(created_s, int)
    assert not isinstance(requests, str | bytes | float)
    assert not isinstance(tokens, str | bytes | float)
    assert not isinstance(concurrency, str | bytes | float)
    return StoredKey(name, digest, created_s, KeyLimits(requests, tokens, concurrency))
