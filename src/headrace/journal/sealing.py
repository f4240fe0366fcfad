"""Payloads of the journal under AES-256-GCM (NIST SP 800-38D)."""

from __future__ import annotations

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.journal.frames import NONCE_BYTES, JournalDamaged


class SealingCipher:
    """A key made of a secret; `key_id` tells keys apart and nothing else of them."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(hashlib.blake2b(secret, digest_size=32, person=b"journal").digest())
        self.key_id = hashlib.blake2b(secret, digest_size=10, person=b"journal-id").digest()

    def seal(self, payload: bytes, bound: bytes) -> bytes:
        """See `Cipher.seal`."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, payload, bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        """See `Cipher.open`."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise JournalDamaged("a record was sealed with another key or changed") from None
