"""Secrets of the store, sealed with AES-256-GCM (NIST SP 800-38D).

The key is not in the database: it is made of HEADRACE_MASTER_KEY, kept in the keyring of the operating
system, or in a file that only its owner may read.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.errors import StoreError, UsageError
from headrace.storage.database import open_private

MASTER_VARIABLE = "HEADRACE_MASTER_KEY"
MIN_MASTER = 16
NONCE_BYTES = 12
KEY_BYTES = 32
SERVICE = "headrace"

SealedBy = Literal["master", "keyring", "file"]
SHOWN: Mapping[str, str] = {
    "master": MASTER_VARIABLE,
    "keyring": "the keyring of the operating system",
    "file": "a key file beside the configuration",
}


class Sealing:
    """Seals and opens values, each bound to its name."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def seal(self, value: bytes, name: str) -> tuple[bytes, SealedBy]:
        """A value sealed, and what keeps the key that opens it."""
        sealed_by, outer = self._sealing_key()
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + AESGCM(outer).encrypt(nonce, value, name.encode()), sealed_by

    def open(self, sealed: bytes, sealed_by: str, name: str) -> bytes | None:
        """The value; None where it was sealed with another key, or under another name."""
        outer = self._outer_key(sealed_by)
        try:
            return AESGCM(outer).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            return None

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
