"""A server of tools over streamable HTTP, whose replies are bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams  # pyright: ignore[reportPrivateImportUsage]
from mcp.client.streamable_http import streamable_http_client

from headrace.tools.mcp.stdio import MAX_FLOOD, MAX_MESSAGE


@asynccontextmanager
async def http_server(
    url: str, headers: Mapping[str, str], timeout_s: float
) -> AsyncGenerator[TransportStreams]:
    """The streams of a server. Redirects stay within its origin, and no proxy of the environment is used."""
    async with httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},  # what is packed small may be large
        timeout=timeout_s,
        transport=_BoundedTransport(),
        trust_env=False,
    ) as client:
        transport = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE)
        async with transport as streams:
            yield streams


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it; the reply's body raises StreamError where it is too large."""
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("the reply is compressed, which was not asked for")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, MAX_FLOOD if is_stream else MAX_MESSAGE)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner, self._left, self._most = inner, most, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            self._left -= len(part)
            if self._left < 0:
                raise httpx2.ReadError(f"the reply has more than {self._most:,} bytes")
            yield part

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()
