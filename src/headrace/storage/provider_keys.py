"""Keys of providers, encrypted: what stands here is of no use without the key that is kept elsewhere."""

from __future__ import annotations

import time

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.storage.database import Database


class SealedKey(Struct, frozen=True):
    """An encrypted key. `sealed_by` says what keeps the key that opens it."""

    provider: str
    sealed: bytes
    sealed_by: str
    created_s: int


class ProviderKeys:
    """The keys in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, provider: str, sealed: bytes, sealed_by: str) -> None:
        """Keep a key, in place of the provider's one before."""
        self._database.execute(
            "INSERT OR REPLACE INTO provider_keys VALUES (?, ?, ?, ?)",
            (provider, sealed, sealed_by, int(time.time())),
        )
        self._database.erase_deleted()

    def find(self, provider: str) -> SealedKey | None:
        """The key of a provider."""
        return next((one for one in self.all() if one.provider == provider), None)

    def all(self) -> list[SealedKey]:
        """All keys, by provider."""
        if not self._database.exists:
            return []
        rows = self._database.query(
            "SELECT provider, sealed, sealed_by, created_s FROM provider_keys ORDER BY provider"
        )
        return [SealedKey(str(row[0]), bytes(row[1]), str(row[2]), int(row[3])) for row in rows]  # type: ignore[arg-type]

    def remove(self, provider: str) -> None:
        """Delete a key. InvalidRequest where there is none."""
        if not self._database.exists or not self._database.execute(
            "DELETE FROM provider_keys WHERE provider = ?", (provider,)
        ):
            names = ", ".join(repr(one.provider) for one in self.all()) or "none"
            raise InvalidRequest(f"there is no key of {provider!r} (there are: {names})", param="name")
        self._database.erase_deleted()
        self._database.erase_copies()

    def version(self) -> int:
        """A number that changes when another connection has changed the database."""
        return int(self._database.query("PRAGMA data_version")[0][0] or 0) if self._database.exists else 0
