"""Keys of providers: from the environment, or encrypted in the store.

They are sealed with AES-256-GCM (NIST SP 800-38D) under a key that is not in the database: made of
HEADRACE_MASTER_KEY, kept in the keyring of the operating system, or in a file that only its owner may read.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.errors import StoreError, UsageError
from headrace.providers.target import Provider
from headrace.storage.database import Database, open_private
from headrace.storage.provider_keys import ProviderKeys, SealedKey

MASTER_VARIABLE = "HEADRACE_MASTER_KEY"
MIN_MASTER = 16
NONCE_BYTES = 12
KEY_BYTES = 32
LOOK_S = 1.0
"""Between two looks for keys that other processes have changed: each is a read of the file."""
SERVICE = "headrace"
_USABLE = re.compile(r"[\x21-\x7e]{1,4096}")

SealedBy = Literal["master", "keyring", "file"]
SHOWN: Mapping[str, str] = {
    "master": MASTER_VARIABLE,
    "keyring": "the keyring of the operating system",
    "file": "a key file beside the configuration",
}


class KeyStore:
    """Reads and keeps the keys of providers. Thread-safe as far as the database is."""

    def __init__(self, database: Database, environ: Mapping[str, str] | None = None) -> None:
        self._keys = ProviderKeys(database)
        self._environ = os.environ if environ is None else environ
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
        sealed_by, outer = self._sealing_key()
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + AESGCM(outer).encrypt(nonce, key.encode(), name.encode())
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
        outer = self._outer_key(sealed.sealed_by)
        nonce, data = sealed.sealed[:NONCE_BYTES], sealed.sealed[NONCE_BYTES:]
        try:
            return AESGCM(outer).decrypt(nonce, data, sealed.provider.encode()).decode()
        except (InvalidTag, ValueError):
            raise UsageError(
                f"the key of {sealed.provider!r} was sealed with another key ({SHOWN[sealed.sealed_by]}): "
                f"restore that, or run `headrace providers add {sealed.provider}` again"
            ) from None

    def _sealing_key(self) -> tuple[SealedBy, bytes]:
        if self._environ.get(MASTER_VARIABLE):
            return "master", self._outer_key("master")
        if _keyring() is not None:
            return "keyring", self._outer_key("keyring")
        return "file", self._outer_key("file")

    def _outer_key(self, sealed_by: str) -> bytes:
        """The key that seals; keyring and file get one where they have none."""
        if sealed_by == "master":
            secret = self._environ.get(MASTER_VARIABLE, "")
            if len(secret) < MIN_MASTER:
                raise UsageError(
                    f"{MASTER_VARIABLE} is missing or shorter than {MIN_MASTER} characters: keys of "
                    "providers in the store are sealed with it"
                )
            return hashlib.scrypt(
                secret.encode(), salt=b"headrace provider keys", n=2**14, r=8, p=1, dklen=KEY_BYTES
            )
        if sealed_by == "keyring":
            return _keyring_key()
        return _file_key(key_file(self._environ))


def usable(key: str, where: str) -> str:
    """The key, UsageError unless it can stand in a header. The message does not have it."""
    if not _USABLE.fullmatch(key):
        raise UsageError(f"{where} is no key: it has spaces, line ends or characters that no key has")
    return key


def key_file(environ: Mapping[str, str]) -> Path:
    """The file with the key that seals, outside the folder of the database."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "headrace" / "provider-keys.key"


def _file_key(path: Path) -> bytes:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        open_private(path)
        found = path.read_bytes()
        if not found:
            found = secrets.token_bytes(KEY_BYTES)
            path.write_bytes(found)
    except OSError as error:
        raise StoreError(f"the key file {path.name} cannot be read or made: {error.strerror}") from error
    if len(found) != KEY_BYTES:
        raise StoreError(f"the key file {path.name} has {len(found)} bytes, {KEY_BYTES} belong there")
    return found


def _keyring() -> Any:
    """The module `keyring` with a usable backend, None without."""
    if importlib.util.find_spec("keyring") is None:
        return None
    keyring: Any = importlib.import_module("keyring")
    try:
        backend = keyring.get_keyring()
        return keyring if backend.priority > 0 else None
    except Exception:  # whatever a backend raises: then there is none
        return None


def _keyring_key() -> bytes:
    keyring = _keyring()
    if keyring is None:
        raise UsageError("keys of providers were sealed with the system's keyring, which is gone")
    found: str | None = keyring.get_password(SERVICE, "provider-keys")
    if found is None:
        found = secrets.token_hex(KEY_BYTES)
        keyring.set_password(SERVICE, "provider-keys", found)
    return bytes.fromhex(found)
