"""API keys in the store: what is kept is a keyed hash, the key itself is shown once."""

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
    """Per minute, and at a time; None is without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class StoredKey(Struct, frozen=True):
    """A key in use. `digest` is HMAC-SHA256 of the key under the store's own secret."""

    name: str
    digest: bytes
    created_s: int
    limits: KeyLimits


def digest_of(key: bytes, pepper: bytes) -> bytes:
    """What is kept of a key. A key has 256 random bits, so that a slow hash would protect nothing more."""
    return hmac.digest(pepper, key, "sha256")


class Keys:
    """The keys of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pepper: bytes | None = None

    def add(self, name: str, limits: KeyLimits) -> str:
        """Make a key and return it; it cannot be read again. The name must not be in use."""
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
        """The key is refused from now on. InvalidRequest where there is none of that name."""
        changed = self._database.execute(
            "UPDATE keys SET revoked_s = ? WHERE name = ? AND revoked_s IS NULL", (int(time.time()), name)
        )
        if not changed:
            names = ", ".join(repr(key.name) for key in self.all()) or "none"
            raise InvalidRequest(f"there is no key named {name!r} (there are: {names})", param="name")

    def all(self) -> list[StoredKey]:
        """The keys in use, oldest first."""
        if not self._database.exists:
            return []
        rows = self._database.query(f"SELECT {_COLUMNS} FROM keys WHERE revoked_s IS NULL ORDER BY id")
        return [_stored(row) for row in rows]

    def ever(self) -> bool:
        """Whether there ever was a key: a store whose last key was revoked must not open the server."""
        return self._database.exists and bool(self._database.query("SELECT 1 FROM keys LIMIT 1"))

    def version(self) -> int:
        """A number that changes when another connection has changed the store."""
        if not self._database.exists:
            return 0
        return int(self._database.query("PRAGMA data_version")[0][0] or 0)

    def pepper(self) -> bytes:
        """The store's secret, made when it is first needed. It never changes, so one look is enough."""
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
