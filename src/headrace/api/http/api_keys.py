"""Which keys open the server: those of the settings and those of the store, held as keyed hashes."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial

from headrace.config.settings import Settings
from headrace.errors import StoreError
from headrace.inference.accounts import Account
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys, StoredKey, digest_of

LOG = logging.getLogger("headrace.api")
REFRESH_S = 1.0


class KeyRing:
    """Finds the account of a key. Keys that `headrace keys` adds or revokes count within a second.

    A key is looked up by its hash under a secret that clients do not know, so how long that takes tells
    them nothing about the keys.
    """

    def __init__(
        self, settings: Settings, database: Database, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._defaults = _limits(settings)
        self._pepper = secrets.token_bytes(32)
        self._configured = self._accounts(settings, {})
        self._keys = Keys(database)
        self._stored: dict[bytes, Account] = {}
        self._stored_pepper = b""
        self._stored_ever = False
        self._version = 0
        self._read_once = False
        self._refreshed_s = -REFRESH_S
        self.everybody = Account("", self._defaults)
        """Whose requests those are that need no key."""

    def configure(self, settings: Settings) -> None:
        """Take over keys and limits. Where the limits stay, accounts do, with what they have used."""
        limits, kept = _limits(settings), self._configured
        if limits != self._defaults:
            self._defaults, kept = limits, {}
            self.everybody = Account("", limits)
            self._stored, self._version, self._refreshed_s = {}, 0, -REFRESH_S
        self._configured = self._accounts(settings, kept)

    def _accounts(self, settings: Settings, kept: Mapping[bytes, Account]) -> dict[bytes, Account]:
        """The accounts of the settings' keys, those of `kept` as they are."""
        return {
            (digest := digest_of(key.encode(), self._pepper)): kept.get(digest)
            or Account(
                f"key {number}",
                self._defaults,
                cache_salt=digest.hex()[:16],
                owner=partial(self._owner, key.encode()),
            )
            for number, key in enumerate(settings.api_key, 1)
        }

    @property
    def required(self) -> bool:
        """Whether a key is needed: as soon as there ever was one."""
        self._refresh()
        return bool(self._configured) or self._stored_ever

    def find(self, sent: bytes) -> Account | None:
        """The account of a key; None where it is no key, or not one any more."""
        self._refresh()
        account = self._configured.get(digest_of(sent, self._pepper))
        if account is None and self._stored_pepper:
            account = self._stored.get(digest_of(sent, self._stored_pepper))
        return account

    def _refresh(self) -> None:
        now_s = self._clock()
        if now_s - self._refreshed_s < REFRESH_S:
            return
        self._refreshed_s = now_s
        try:
            self._read()
        except StoreError as error:
            if not self._read_once:
                raise
            LOG.error("%s; the keys stay as they were", error.message)
        self._read_once = True

    def _read(self) -> None:
        version = self._keys.version()
        if version == self._version:
            return
        self._version = version
        self._stored_ever = self._keys.ever()
        if self._stored_ever:
            self._stored_pepper = self._keys.pepper()
            self._stored = {key.digest: self._account(key) for key in self._keys.all()}

    def _owner(self, key: bytes) -> str:
        """A configured key's name in the store: as if it were one of the store's own."""
        return _owner_of(digest_of(key, self._keys.pepper()))

    def account_of(self, owner: str) -> Account | None:
        """The account with that `owner`; None where no key here has it. It reads the store."""
        self._refresh()
        if not owner:
            return self.everybody
        accounts = (*self._configured.values(), *self._stored.values())
        return next((account for account in accounts if account.owner() == owner), None)

    def _account(self, key: StoredKey) -> Account:
        """The account of a stored key: the one it has, so that its use is not forgotten by a refresh."""
        own, defaults = key.limits, self._defaults
        limits = KeyLimits(
            own.requests_per_minute or defaults.requests_per_minute,
            own.tokens_per_minute or defaults.tokens_per_minute,
            own.concurrency or defaults.concurrency,
        )
        return self._stored.get(key.digest) or Account(
            key.name, limits, cache_salt=key.digest.hex()[:16], owner=partial(_owner_of, key.digest)
        )


def _limits(settings: Settings) -> KeyLimits:
    return KeyLimits(settings.key_rpm, settings.key_tpm, settings.key_max_concurrency)


def _owner_of(digest: bytes) -> str:
    return digest.hex()[:32]
