"""The response cache of a server: in front of its own models, and of remote ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.config.cache_settings import CacheSettings
from headrace.gateway.caching_handler import CachingHandler
from headrace.gateway.model_identities import LocalIdentities, RemoteIdentities
from headrace.gateway.near_questions import NearQuestions
from headrace.gateway.response_cache import ResponseCache
from headrace.inference.handler import Handler
from headrace.inference.model_source import ManagedModels
from headrace.storage.cached_answers import cache_file, open_cache

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.gateway.routes import Route


class ResponseCaching:
    """Made where there is a table `[cache]`. `is_idle` says whether no model of this machine computes."""

    def __init__(
        self,
        settings: CacheSettings,
        store: Path | None,
        models: ManagedModels,
        *,
        tool_format: Callable[[], str | None],
        is_idle: Callable[[], bool],
    ) -> None:
        self._settings, self._is_idle = settings, is_idle
        file = None if store is None else cache_file(store)
        self.cache = ResponseCache(open_cache(file), limit_bytes=settings.bytes, ttl_s=settings.ttl)
        self._near = None if settings.near == "off" else NearQuestions(self.cache, settings.risk)
        self._identities = LocalIdentities(models, tool_format)
        self._handlers: list[CachingHandler] = []
        self._remote: CachingHandler | None = None

    def local(self, inner: Handler) -> Handler:
        """In front of the models of this machine."""
        handler = CachingHandler(
            inner, self.cache, self._settings, self._identities, is_idle=self._is_idle, near=self._near
        )
        self._handlers.append(handler)
        return handler

    def remote(self, inner: Handler, find: Callable[[str | None], Route | None]) -> Handler:
        """In front of what sends requests elsewhere, which may be another one the next time."""
        if self._remote is None:
            identities = RemoteIdentities(find)
            self._remote = CachingHandler(
                *(inner, self.cache, self._settings, identities),
                is_idle=self._is_idle,
                knows=identities.knows,
            )
            self._handlers.append(self._remote)
        self._remote.inner = inner
        return self._remote

    async def close(self) -> None:
        """Write what is not written."""
        for handler in self._handlers:
            await handler.close()
        await asyncio.to_thread(self.cache.close)
