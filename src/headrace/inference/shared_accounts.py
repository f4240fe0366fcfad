"""Accounts whose limits several servers count together, in the store that they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from headrace.errors import StoreError
from headrace.inference.accounts import Account, Bucket, RateLimited
from headrace.inference.store_threads import StoreThreads
from headrace.storage.key_use import LEASE_S, KeyUse
from headrace.storage.keys import KeyLimits

LOG = logging.getLogger("headrace.api")
SETTLING_S = 0.1
"""In what time the other servers hear of a request that has ended, unless the store is slow."""


class SharedUse:
    """The store with the use of all keys, off the event loop."""

    def __init__(self, use: KeyUse) -> None:
        self.use = use
        self.threads = StoreThreads(1)
        self.calls: dict[str, int] = {}
        """Requests under way on this server, by owner; changed on the store's thread alone. The store may not
        have heard of all that have ended."""
        self._beat: asyncio.Task[None] | None = None
        self._later: set[asyncio.Task[None]] = set()

    def later(self, work: Callable[[], None]) -> None:
        """Do it when its turn comes; where the store fails the log says so."""

        async def run() -> None:
            try:
                await self.threads.run(work)
            except StoreError as error:
                LOG.error("%s; what a key has used is not counted", error.message)

        task = asyncio.get_running_loop().create_task(run())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def keep_alive(self) -> None:
        """From now on the others hear of this server's requests."""
        if self._beat is None or self._beat.done():
            self._beat = asyncio.get_running_loop().create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        while any(self.calls.values()):
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self.threads.run(lambda: self.use.still_open(dict(self.calls)))
            except StoreError as error:
                LOG.error("%s", error.message)

    def close(self) -> None:
        """Stop the thread."""
        if self._beat is not None:
            self._beat.cancel()
        self.threads.close()


class SharedAccount(Account):
    """See `Account`. Its buckets are those of the store while they are used, and copies of them otherwise."""

    def __init__(self, name: str, limits: KeyLimits, *, shared: SharedUse, **more: Any) -> None:
        super().__init__(name, limits, clock=shared.use.clock, **more)
        self._shared = shared

    is_shared = True

    async def enter_shared(self, held: ExitStack) -> None:
        """See `Account.enter_shared`."""
        if self._requests is None and self._tokens is None and self.limits.concurrency is None:
            return
        if self._requests is not None:
            # Others only take from it: where this copy has none left there is none. So a key that goes on
            # asking costs the store, and all other keys, nothing.
            self._check(self._requests, 1, self._clock(), "requests")
        entering = asyncio.ensure_future(self._patiently(self._enter))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:  # the client has left, and the thread counts it all the same
            entering.add_done_callback(self._undo)
            raise
        held.callback(self._leave)
        if self.limits.concurrency is not None:
            self._shared.keep_alive()

    async def reserve_shared(self, tokens: int) -> None:
        """See `Account.reserve_shared`."""
        if self._tokens is not None:
            await self._patiently(lambda: self._in_store(lambda: Account.reserve(self, tokens)))

    async def _patiently(self, work: Callable[[], None]) -> None:
        """Do it; where it is refused once more, since what has just ended elsewhere may not be written."""
        try:
            await self._shared.threads.run(work)
        except RateLimited:
            await asyncio.sleep(SETTLING_S)
            await self._shared.threads.run(work)

    def enter(self) -> None:
        """It is counted by `enter_shared`."""

    def leave(self) -> None:
        """See `enter`."""

    def settle(self, returned: int) -> None:
        """See `Account.settle`."""
        if self._tokens is not None and returned:
            self._shared.later(lambda: self._in_store(lambda: Account.settle(self, returned)))

    def _enter(self) -> None:
        self._in_store(lambda: Account.enter(self), calls=1)
        if self.limits.concurrency is not None:
            self._shared.calls[self.owner()] = self._own_calls + 1

    def _undo(self, entering: asyncio.Future[None]) -> None:
        if not entering.cancelled() and entering.exception() is None:
            self._leave()

    def _leave(self) -> None:
        if self.limits.concurrency is not None:
            self._shared.later(self._left)

    def _left(self) -> None:
        """It has ended, whether or not the store can hear of that now."""
        owner, left = self.owner(), self._own_calls - 1
        if left > 0:
            self._shared.calls[owner] = left
        else:
            self._shared.calls.pop(owner, None)
        self._in_store(lambda: None, calls=0)

    @property
    def _own_calls(self) -> int:
        """Requests under way on this server."""
        return self._shared.calls.get(self.owner(), 0)

    def _in_store(self, work: Callable[[], None], *, calls: int | None = None) -> None:
        """Do it with the buckets of the store, and keep what becomes of them; nothing where it is refused.
        With `calls`, which are new, also requests at a time."""
        use, owner = self._shared.use, self.owner()
        counts = self.limits.concurrency is not None and calls is not None
        with use.transaction():
            buckets: list[tuple[str, Bucket]] = []
            for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
                if bucket is not None:
                    bucket.restore(use.bucket(owner, kind))
                    buckets.append((kind, bucket))
            own = self._own_calls
            if counts:
                self._open = use.open_calls(owner) + own
            work()
            for kind, bucket in buckets:
                use.keep_bucket(owner, kind, *bucket.state)
            if counts:
                use.keep_calls(owner, own + (calls or 0))
