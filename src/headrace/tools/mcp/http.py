"""A server of tools over streamable HTTP, whose replies are bounded, and what its OAuth may lead to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams  # pyright: ignore[reportPrivateImportUsage]
from mcp.client.streamable_http import streamable_http_client

from headrace.config.addresses import is_local_name, is_private
from headrace.tools.mcp.stdio import MAX_FLOOD, MAX_MESSAGE


@asynccontextmanager
async def http_server(
    url: str, headers: Mapping[str, str], timeout_s: float, auth: httpx2.Auth | None = None
) -> AsyncGenerator[TransportStreams]:
    """The streams of a server. Redirects stay within its origin, and no proxy of the environment is used."""
    async with httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},  # what is packed small may be large
        timeout=timeout_s,
        auth=auth,
        transport=_BoundedTransport(url),
        trust_env=False,
    ) as client:
        transport = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE)
        async with transport as streams:
            yield streams


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """For one server. Its OAuth may name other addresses: these must be public and encrypted, unless the
    server itself is in a private network. What is checked is what is connected to."""

    def __init__(self, url: str) -> None:
        super().__init__()
        server = httpx2.URL(url)
        self._origin, self._is_local = _origin(server), is_local_name(server.host)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it; the reply's body raises StreamError where it is too large."""
        if _origin(request.url) != self._origin and not self._is_local:
            await _pin(request)
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("the reply is compressed, which was not asked for")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, MAX_FLOOD if is_stream else MAX_MESSAGE)
        return response


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _pin(request: httpx2.Request) -> None:
    """Let a request go to a public address of its host; ConnectError where there is none."""
    host = request.url.host
    if request.url.scheme != "https":
        raise httpx2.ConnectError(f"{host[:100]} of its OAuth is not at https")
    loop, port = asyncio.get_running_loop(), request.url.port or 443
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    if not addresses or any(map(is_private, addresses)):
        raise httpx2.ConnectError(f"{host[:100]} of its OAuth is in a private network")
    request.extensions = {**request.extensions, "sni_hostname": host}
    request.url = request.url.copy_with(host=addresses[0])


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
