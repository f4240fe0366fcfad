"""Requests about batches to one provider, and what is checked of all replies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.providers.dialect import Dialect
from headrace.providers.failure import AttemptFailed, Failure, shown, without_secret
from headrace.providers.upstream import Upstream, UpstreamReply

MAX_RESULT_BYTES = 16 * 2**20
"""Of one line."""
MAX_STATE_BYTES = 2**20
_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")


class BatchCaller:
    """Requests about batches to one provider."""

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect,
        headers: Callable[[Sequence[str]], dict[str, str]],
        key: Callable[[], str | None],
    ) -> None:
        """`key` is what no text of the provider may show."""
        self._upstream, self._dialect, self._headers, self._key = upstream, dialect, headers, key

    async def read(
        self,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        hops: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The JSON object that answers a request."""
        reply = await self.reply(path, body, content_type=content_type, hops=hops, more=more)
        content = await reply.body(MAX_STATE_BYTES)
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise failed("sent no JSON object about its batches")
        return cast("dict[str, Any]", found)

    async def reply(
        self,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        hops: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> UpstreamReply:
        """The reply to a request, of status 200."""
        headers = {"accept": "*/*", "content-type": content_type, **self._headers(hops), **(more or {})}
        until_s = asyncio.get_running_loop().time() + self._upstream.settings.total_timeout
        reply = await self._upstream.send(path, body, headers, until_s)
        if reply.status == 200:
            return reply
        raise AttemptFailed(
            without_secret(self._dialect.failure(reply.status, await reply.body()), self._key())
        )

    def shown(self, text: str) -> str:
        """A text of the provider as it may be shown."""
        return shown(text, self._key())


def checked_id(value: object) -> str:
    """An id that may be a part of a path. Raises AttemptFailed."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or value in (".", ".."):
        raise failed("sent an id of a batch or a file that is none")
    return value


def failed(message: str) -> AttemptFailed:
    """What the provider sent is wrong."""
    return AttemptFailed(Failure(phase="end", kind="malformed", message=message))
