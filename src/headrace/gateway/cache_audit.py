"""A part of the hits is computed once more, when nothing else is: is a hit what would be computed?"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from msgspec import Struct

from headrace.errors import HeadraceError
from headrace.gateway.answer_record import AnswerRecord, content_of
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity
from headrace.gateway.single_flight import is_whole
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.handler import Batch, Handler
from headrace.inference.requests import GenerationRequest

LOG = logging.getLogger("headrace.cache")
SHARE = 0.01
MAX_WAITING = 16
LOOK_EVERY_S = 0.5
PATIENCE_S = 600.0

Identify = Callable[[GenerationRequest, CallContext], Awaitable[ModelIdentity | None]]


class Audit(Struct, frozen=True):
    """A hit that is to be computed again."""

    request: GenerationRequest
    identity: ModelIdentity
    record: AnswerRecord
    account: Account


class CacheAudits:
    """Computes hits again through `inner`, one at a time, while `is_idle`. Lives on the event loop."""

    def __init__(
        self,
        inner: Callable[[], Handler],
        cache: ResponseCache,
        identify: Identify,
        is_idle: Callable[[], bool],
        *,
        share: float = SHARE,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._inner, self._cache, self._identify, self._is_idle = inner, cache, identify, is_idle
        self._share, self._draw = share, draw
        self._waiting: list[Audit] = []
        self._task: asyncio.Task[None] | None = None

    def consider(self, audit: Audit) -> None:
        """A hit was given: by chance it is audited. Of a remote model never: that costs money."""
        is_chosen = audit.identity.is_local and self._draw() < self._share
        if not is_chosen or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(audit)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while self._waiting:
            audit = self._waiting[0]
            try:
                if await self._idle():
                    await self._compare(audit)
            except HeadraceError as error:
                LOG.info("an audit of the cache was not possible: %s", error.message)
            finally:
                self._waiting.remove(audit)

    async def _idle(self) -> bool:
        for _ in range(int(PATIENCE_S / LOOK_EVERY_S)):
            if self._is_idle():
                return True
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def _compare(self, audit: Audit) -> None:
        call = CallContext(request_id=new_request_id(), account=audit.account, background=True)
        if await self._identify(audit.request, call) != audit.identity:  # other weights, another day
            return
        batches: list[Batch] = []
        async with aclosing(self._inner().handle(audit.request, call)) as source:
            async for batch in source:
                batches.append(batch)
        if not is_whole(batches):
            return
        name = audit.identity.name
        self._cache.counts[name, "audited"] += 1
        if content_of(batches) != content_of(audit.record.batches):
            self._cache.counts[name, "mismatch"] += 1
            count = self._cache.forget_model(audit.identity.digest)
            LOG.error(
                "a kept answer of %s is not what is computed now: all %d of its answers are forgotten. "
                "This breaks the contract of docs/concepts/determinism.md, please report it",
                *(name, count),
            )

    async def close(self) -> None:
        """Stop what is audited."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
