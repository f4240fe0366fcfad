"""Keys of providers: from the environment, or encrypted in the store."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from headrace.errors import UsageError
from headrace.providers.sealing import SHOWN, SealedBy, Sealing
from headrace.providers.target import Provider
from headrace.storage.database import Database
from headrace.storage.provider_keys import ProviderKeys, SealedKey

LOOK_S = 1.0
"""Between two looks for keys that other processes have changed: each is a read of the file."""
_USABLE = re.compile(r"[\x21-\x7e]{1,4096}")


class KeyStore:
    """Reads and keeps the keys of providers. Thread-safe as far as the database is."""

    def __init__(self, database: Database, environ: Mapping[str, str] | None = None) -> None:
        self._keys = ProviderKeys(database)
        self._environ = os.environ if environ is None else environ
        self._sealing = Sealing(self._environ)
        self._opened: dict[str, tuple[SealedKey, str]] = {}
        self._version = -1
        self._looked_s = 0.0
        self._sealed: dict[str, SealedKey] = {}

    def key_of(self, provider: Provider) -> str | None:
        """The key of a provider: the environment's, or the stored one; None where there is neither.
        UsageError where one cannot be read."""
        variable = provider.key_variable
        given = self._environ.get(variable, "").strip() if variable else ""
        if given:
            return usable(given, f"the variable {variable}")
        return self.stored(provider.name)

    def stored(self, name: str) -> str | None:
        """The stored key of that name."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S or self._version < 1:
            version = self._keys.version()
            if version != self._version or version == 0:  # a running server learns of `providers add`
                self._sealed = {one.provider: one for one in self._keys.all()}
                self._version = version
            self._looked_s = now_s
        sealed = self._sealed.get(name)
        if sealed is None:
            return None
        known = self._opened.get(name)
        if known is None or known[0] != sealed:
            known = self._opened[name] = (sealed, self._open(sealed))
        return known[1]

    def add(self, name: str, key: str) -> SealedBy:
        """Keep a key; says what keeps the key that opens it. UsageError where it is no key."""
        usable(key, "the key")
        sealed, sealed_by = self._sealing.seal(key.encode(), name)
        self._keys.put(name, sealed, sealed_by)
        self._version = -1
        return sealed_by

    def remove(self, name: str) -> None:
        """Delete a key. InvalidRequest where there is none."""
        self._keys.remove(name)
        self._opened.pop(name, None)
        self._version = -1

    def all(self) -> list[SealedKey]:
        """All keys, sealed."""
        return self._keys.all()

    def _open(self, sealed: SealedKey) -> str:
        found = self._sealing.open(sealed.sealed, sealed.sealed_by, sealed.provider)
        if found is None:
            raise UsageError(
                f"the key of {sealed.provider!r} was sealed with another key ({SHOWN[sealed.sealed_by]}): "
                f"restore that, or run `headrace providers add {sealed.provider}` again"
            )
        return found.decode()


def usable(key: str, where: str) -> str:
    """The key, UsageError unless it can stand in a header. The message does not have it."""
    if not _USABLE.fullmatch(key):
        raise UsageError(f"{where} is no key: it has spaces, line ends or characters that no key has")
    return key
