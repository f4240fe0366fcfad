"""Which keys open the server: those of the settings and those of the store, held as keyed hashes."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.api.http.call_context import HttpCall
from headrace.config.settings import Settings
from headrace.errors import StoreError
from headrace.inference.accounts import Account, configured_limits
from headrace.inference.shared_accounts import SharedAccount, SharedUse
from headrace.storage.key_use import KeyUse
from headrace.storage.keys import KeyLimits, Keys, Scope, StoredKey, digest_of
from headrace.storage.sql_store import SqlStore

LOG = logging.getLogger("headrace.api")
REFRESH_S = 1.0
READ_WAIT_S = 0.5
"""How long a request waits for the store's keys to be read again, which usually takes under 1 ms."""


class _StoredKeys(Struct, frozen=True):
    """The store's keys as they were read last."""

    version: int = 0
    ever: bool = False
    pepper: bytes = b""
    keys: Sequence[StoredKey] = ()
    accounts: Mapping[bytes, Account] = field(default_factory=dict[bytes, Account])


class KeyRing:
    """Finds the account of a key. Keys that `headrace keys` adds or revokes count within a second, or when
    the store can be read again.

    Lives on the event loop; a thread of its own reads the store. A key is looked up by its hash under a
    secret that clients do not know, so how long that takes tells them nothing about the keys.
    """

    def __init__(
        self, settings: Settings, database: SqlStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._defaults = configured_limits(settings)
        self._pepper = secrets.token_bytes(32)
        self._shared = None if database.shared_clock is None else SharedUse(KeyUse(database))
        self._keys = Keys(database)
        self._configured = self._accounts(settings, {})
        self._stored = _StoredKeys()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-keys")
        self._reading: asyncio.Future[None] | None = None
        self._read_once = False
        self._refreshed_s = -REFRESH_S
        self.everybody = self._new("", self._defaults)
        """Whose requests those are that need no key."""

    def configure(self, settings: Settings) -> None:
        """Take over keys and limits. Where the limits stay, accounts do, with what they have used."""
        limits, kept = configured_limits(settings), self._configured
        if limits != self._defaults:
            self._defaults, kept = limits, {}
            self.everybody = self._new("", limits)
            stored = self._stored
            self._stored = replace(stored, accounts=self._accounts_of(stored.keys, {}))
        self._configured = self._accounts(settings, kept)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._shared is not None:
            self._shared.close()

    @property
    def required(self) -> bool:
        """Whether a key is needed: as soon as there ever was one."""
        return bool(self._configured) or self._stored.ever

    def find(self, sent: bytes) -> Account | None:
        """The account of a key; None where it is no key, or not one any more."""
        account = self._configured.get(digest_of(sent, self._pepper))
        if account is None and self._stored.pepper:
            account = self._stored.accounts.get(digest_of(sent, self._stored.pepper))
        return account

    def account_of(self, owner: str) -> Account | None:
        """The account with that `owner`; None where no key here has it. It reads the store."""
        if not owner:
            return self.everybody
        accounts = (*self._configured.values(), *self._stored.accounts.values())
        return next((account for account in accounts if account.owner() == owner), None)

    async def refresh(self) -> None:
        """Read the store's keys where that was long ago. If it takes long, the keys stay as they were. Where
        they were never read it waits as long as the store allows; StoreError where they cannot be."""
        if self._reading is None:
            if self._read_once and self._clock() - self._refreshed_s < REFRESH_S:
                return
            self._reading = asyncio.get_running_loop().run_in_executor(self._thread, self._read)
            self._reading.add_done_callback(self._have_read)
        reading = self._reading
        await asyncio.wait({reading}, timeout=READ_WAIT_S if self._read_once else None)
        if not self._read_once:
            reading.result()

    def _have_read(self, reading: asyncio.Future[None]) -> None:
        self._reading, self._refreshed_s = None, self._clock()
        error = None if reading.cancelled() else reading.exception()
        if error is None:
            self._read_once = True
        elif self._read_once:
            said = error.message if isinstance(error, StoreError) else repr(error)
            LOG.error("%s; the keys stay as they were", said)

    def _read(self) -> None:
        """On the thread."""
        stored, version = self._stored, self._keys.version()
        if version == stored.version:
            return
        if not self._keys.ever():  # where there were some, the database is another one: it opens nothing
            read = _StoredKeys(version, stored.ever)
        else:
            keys = self._keys.all()
            accounts = self._accounts_of(keys, stored.accounts)
            read = _StoredKeys(version, True, self._keys.pepper(), keys, accounts)
        if self._stored is stored:  # else the limits have changed: read again
            self._stored = read

    def _new(self, name: str, limits: KeyLimits, **more: Any) -> Account:
        if self._shared is None:
            return Account(name, limits, **more)
        return SharedAccount(name, limits, shared=self._shared, **more)

    def _accounts(self, settings: Settings, kept: Mapping[bytes, Account]) -> dict[bytes, Account]:
        """The accounts of the settings' keys, those of `kept` as they are where they may do the same."""
        found: dict[bytes, Account] = {}
        for number, (key, scope) in enumerate(_configured_keys(settings), 1):
            digest = digest_of(key.encode(), self._pepper)
            account = kept.get(digest)
            if account is None or account.may("admin") != (scope == "admin"):
                account = self._new(
                    f"key {number}",
                    _limits(self._defaults, scope),
                    cache_salt=digest.hex()[:16],
                    scopes=frozenset({scope}),
                    owner=partial(self._owner, key.encode()),
                )
            found[digest] = account
        return found

    def _owner(self, key: bytes) -> str:
        """A configured key's name in the store: as if it were one of the store's own."""
        return _owner_of(digest_of(key, self._keys.pepper()))

    def _accounts_of(self, keys: Sequence[StoredKey], kept: Mapping[bytes, Account]) -> dict[bytes, Account]:
        return {key.digest: self._account(key, kept) for key in keys}

    def _account(self, key: StoredKey, kept: Mapping[bytes, Account]) -> Account:
        """The account of a stored key: the one it has, so that its use is not forgotten by a refresh."""
        own, defaults = key.limits, _limits(self._defaults, "admin" if "admin" in key.scopes else "infer")
        limits = KeyLimits(
            own.requests_per_minute or defaults.requests_per_minute,
            own.tokens_per_minute or defaults.tokens_per_minute,
            own.concurrency or defaults.concurrency,
            defaults.priority if own.priority is None else own.priority,
        )
        return kept.get(key.digest) or self._new(
            key.name,
            limits,
            cache_salt=key.digest.hex()[:16],
            scopes=key.scopes,
            owner=partial(_owner_of, key.digest),
        )


def _configured_keys(settings: Settings) -> list[tuple[str, Scope]]:
    """Each with its scope; a key that is given as both is one of `admin_api_key`."""
    admins: list[tuple[str, Scope]] = [(key, "admin") for key in settings.admin_api_key]
    others: list[tuple[str, Scope]] = [
        (key, "infer") for key in settings.api_key if key not in settings.admin_api_key
    ]
    return others + admins


def _limits(defaults: KeyLimits, scope: Scope) -> KeyLimits:
    """The settings' limits for a key without its own: with the scope admin any priority."""
    return replace(defaults, priority=None) if scope == "admin" else defaults


def _owner_of(digest: bytes) -> str:
    return digest.hex()[:32]


_TABLE: Sequence[tuple[str, str, Scope]] = (
    ("POST", "/v1/models/.+/(load|unload)", "admin"),
    ("POST", "/v1/(load|unload)_lora_adapter", "admin"),
    ("GET", "/v1/fine_tuning/.+", "admin"),
    ("POST", "/v1/fine_tuning/.+", "admin"),
    ("POST", "/api/(pull|push)", "admin"),
    ("GET", "/v1/organization/.+", "admin"),
    ("GET", "/v1/probes", "admin"),
    ("GET", "/v1/cluster", "admin"),
    ("POST", "/v1/cluster/(drain|replace|update)", "admin"),
    ("POST", "/v1/routes/score", "admin"),
    ("GET", "/v1/adapt/.+", "admin"),
    ("POST", "/v1/adapt/.+", "admin"),
    ("POST", "/api/(create|copy)", "alias"),
    ("DELETE", "/api/delete", "alias"),  # a model of the hub needs admin: only its handler knows which it is
)
_SCOPES: Sequence[tuple[str, re.Pattern[str], Scope]] = [
    (method, re.compile(path), scope) for method, path, scope in _TABLE
]
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def required_scope(method: str, path: str) -> Scope | None:
    """The scope that a request needs, None where any key will do: it looks at something, and at files,
    batches and responses only at its own."""
    for known, pattern, scope in _SCOPES:
        if method == known and pattern.fullmatch(path):
            return scope
    return None if method in READS else "infer"


def check_scope(call: HttpCall) -> None:
    """Raise ScopeMissing where the call's key lacks the scope. Without keys everybody has all."""
    scope = required_scope(call.method, call.path)
    if scope is not None:
        call.account.require(scope)
