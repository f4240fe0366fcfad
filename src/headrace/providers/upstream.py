"""HTTP to one provider: a session with timeouts for each phase, and limits on all that comes back."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDictProxy

from headrace import __version__
from headrace.config.addresses import is_local_name
from headrace.config.providers import ProviderSettings
from headrace.providers.address import PinnedResolver, PrivateAddress
from headrace.providers.failure import AttemptFailed, Failure, Phase
from headrace.providers.sse import SseError, SseEvent, SseSplitter

MAX_ERROR_BYTES = 64 * 1024
MAX_REPLY_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 64 * 1024
FINISH_S = 1.0
"""How long the end of a reply is waited for after its last event."""
SHUTS_DOWN = "was left: this server shuts down, send the request elsewhere"
_STREAMS = ("text/event-stream", "text/plain", "application/octet-stream", "")


class Upstream:
    """The connections to one provider. Lives on one event loop; `close` it there."""

    def __init__(self, base_url: str, settings: ProviderSettings) -> None:
        self.base_url = base_url
        self.settings = settings
        host = urlsplit(base_url).hostname or ""
        self._allow_private = settings.allow_private or is_local_name(host)
        self._session: aiohttp.ClientSession | None = None
        self._replies: set[UpstreamReply] = set()
        self._is_closed = False

    async def send(
        self, path: str, body: bytes | None, headers: Mapping[str, str], deadline_s: float
    ) -> UpstreamReply:
        """Send a request, a GET without a body; the reply when its headers are there. `deadline_s` is on the
        loop's clock.

        Raises AttemptFailed for everything that prevents a reply; a reply may have any status.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        first_s = loop.time() + settings.connect_timeout + settings.first_byte_timeout
        try:
            async with asyncio.timeout_at(min(deadline_s, first_s)):
                response = await self._opened().request(
                    "GET" if body is None else "POST",
                    self.base_url + path,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                )
        except TimeoutError as error:
            is_connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            raise _timed_out("connect" if is_connecting else "headers") from error
        except PrivateAddress as error:
            raise _failed("connect", "auth", str(error)) from error
        except aiohttp.ClientConnectorError as error:
            raise _connect_failed(error) from error
        except aiohttp.ClientResponseError as error:  # headers too long, or no HTTP
            raise _failed("headers", "malformed", "sent headers that are no HTTP, or too long") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._is_closed:
                raise
            raise AttemptFailed(
                Failure(
                    phase="headers",
                    kind="truncated",
                    message=SHUTS_DOWN if self._is_closed else "closed the connection before it replied",
                    billed="maybe",
                )
            ) from error
        reply = UpstreamReply(response, settings, deadline_s, self._replies.discard)
        self._replies.add(reply)
        await reply.check_headers()
        return reply

    def _opened(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise RuntimeError("the connections are closed")
        if self._session is None:
            settings = self.settings
            connector = aiohttp.TCPConnector(
                limit=settings.max_connections,
                resolver=PinnedResolver(allow_private=self._allow_private),
                use_dns_cache=False,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(sock_connect=settings.connect_timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": f"headrace/{__version__}", "accept-encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
                max_line_size=8190,
                max_field_size=8190,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections; replies that are being read end with an error."""
        self._is_closed = True
        for reply in list(self._replies):
            await reply.close(SHUTS_DOWN)
        await asyncio.sleep(0)  # what finishes in the background sees that
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class UpstreamReply:
    """A reply whose headers have arrived. Close it, or read it to its end."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        settings: ProviderSettings,
        deadline_s: float,
        on_closed: Callable[[UpstreamReply], None],
    ) -> None:
        self._response, self._settings, self._deadline_s = response, settings, deadline_s
        self._on_closed = on_closed
        self._closed_because = ""
        self._finishing: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._until_s: float | None = None
        self.status = response.status
        self.received = 0
        """Bytes of its events so far."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """Its headers."""
        return self._response.headers

    @property
    def content_type(self) -> str:
        """Its media type, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def check_headers(self) -> None:
        """Raise AttemptFailed for a redirect, for compressed bytes, and for too many headers."""
        headers, status = self.headers, self.status
        cause = ""
        if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADER_BYTES:
            cause = f"sent more than {MAX_HEADER_BYTES:,} bytes of headers"
        elif 300 <= status < 400:
            cause = f"redirects (status {status}), which is not followed: correct base_url"
        elif headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            cause = "sent a compressed reply, which was not asked for"
        if cause:
            await self.close()
            raise _failed("headers", "malformed", cause, status)

    async def body(self, limit: int = MAX_ERROR_BYTES) -> bytes:
        """All of a small reply, or its first `limit` bytes; closes it. Errors only end it."""
        found = bytearray()
        try:
            while len(found) < limit and (data := await self._read(self._settings.idle_timeout)):
                found += data
        except AttemptFailed:
            pass
        finally:
            await self.close()
        return bytes(found[:limit])

    async def whole(self) -> bytes:
        """All of a reply in JSON; closes it. Raises AttemptFailed where it breaks off or is too large."""
        if self.content_type != "application/json":
            await self.close()
            raise _failed(
                *("headers", "malformed"),
                f"replied with {self.content_type[:60]!r} where JSON was asked for",
                self.status,
            )
        found = bytearray()
        try:
            wait_s = self._settings.first_byte_timeout
            while data := await self._read(wait_s):
                wait_s = self._settings.idle_timeout
                found += data
                if len(found) > MAX_REPLY_BYTES:
                    message = f"sent more than {MAX_REPLY_BYTES:,} bytes"
                    raise _failed("stream", "malformed", message, self.status)
        finally:
            await self.close()
        return bytes(found)

    async def lines(self, longest: int) -> AsyncGenerator[list[bytes]]:
        """The lines of a reply as they come, without blank ones; closes it. Raises AttemptFailed where it
        breaks off, or breaks a limit."""
        rest, size, wait_s = bytearray(), 0, self._settings.first_byte_timeout
        try:
            while data := await self._read(wait_s):
                wait_s = self._settings.idle_timeout
                size += len(data)
                end, whole = data.rfind(b"\n") + 1, b""
                if end:
                    whole, rest = bytes(rest) + data[:end], bytearray()
                rest += data[end:]
                if size > MAX_REPLY_BYTES or len(rest) > longest:
                    raise _failed(
                        "stream", "malformed", "sent a reply or a line that is too long", self.status
                    )
                if found := [line for line in whole.split(b"\n") if line.strip()]:
                    yield found
            if rest.strip():
                yield [bytes(rest)]
        finally:
            await self.close()

    async def events(self) -> AsyncGenerator[list[SseEvent]]:
        """The server-sent events as they come. Raises AttemptFailed for a stream that breaks off or breaks a
        limit."""
        if self.content_type not in _STREAMS:
            raise _failed(
                *("headers", "malformed"),
                f"replied with {self.content_type[:60]!r} where a stream of events was asked for",
                self.status,
            )
        splitter = SseSplitter()
        wait_s = self._settings.first_byte_timeout
        try:
            while data := await self._read(wait_s):
                wait_s = self._settings.idle_timeout
                self.received += len(data)
                if self.received > MAX_REPLY_BYTES:
                    raise SseError(f"sent more than {MAX_REPLY_BYTES:,} bytes")
                events = splitter.feed(data)
                if events:
                    yield events
            if events := splitter.finish():
                yield events
        except SseError as error:
            raise _failed("stream", "malformed", str(error), self.status) from error

    async def _read(self, wait_s: float) -> bytes:
        """The next bytes, b"" at the end."""
        self._until_s = min(self._deadline_s, self._loop.time() + wait_s)
        if self._timer is None or self._timer.when() > self._until_s:
            self._watch()
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise _timed_out("stream") from error
        except (aiohttp.ClientError, OSError) as error:
            raise AttemptFailed(
                Failure(
                    phase="stream",
                    kind="truncated",
                    message=self._closed_because or "closed the connection in the middle of the reply",
                    status=self.status,
                    billed="yes",
                )
            ) from error
        finally:
            self._until_s = None

    def _watch(self) -> None:
        """End the read that waits too long. One timer serves all reads: each of its own took a third of what
        reading a chunk takes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._until_s is None:
            return
        if self._loop.time() >= self._until_s:
            self._response.content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(self._until_s, self._watch)

    def _unwatch(self) -> None:
        self._until_s = None
        self._watch()

    def finish(self) -> None:
        """All that matters has been read: take what is left in the background, so that the connection can
        serve another request; where that takes long, close it."""
        if self._response.content.at_eof():
            self._unwatch()
            self._on_closed(self)
            return
        self._finishing = asyncio.ensure_future(self._rest())

    async def _rest(self) -> None:
        size = 0
        try:
            while size < MAX_ERROR_BYTES and (data := await self._read(FINISH_S)):
                size += len(data)
        except AttemptFailed:
            pass
        finally:
            await self.close()

    async def close(self, cause: str = "") -> None:
        """Drop what has not been read; the connection is closed, which cancels the work at most providers.
        Who is reading gets `cause` as an error."""
        self._unwatch()
        self._on_closed(self)
        self._closed_because = cause
        if cause:
            self._response.content.set_exception(aiohttp.ClientPayloadError(cause))
        self._response.close()


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a provider asks to wait, in seconds; None where it does not, or says nothing sensible."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            return float(value[:40]) * unit
        except ValueError:
            pass
        try:
            return email.utils.parsedate_to_datetime(value[:60]).timestamp() - time.time()
        except (ValueError, OverflowError):
            continue
    return None


def _failed(phase: Phase, kind: str, message: str, status: int | None = None) -> AttemptFailed:
    return AttemptFailed(Failure(phase=phase, kind=kind, message=message, status=status))  # type: ignore[arg-type]


def _timed_out(phase: Phase) -> AttemptFailed:
    said = {
        "connect": "could not be connected to in time",
        "headers": "did not begin its reply in time",
        "stream": "stopped in the middle of its reply",
    }
    billed = "no" if phase == "connect" else "maybe"
    return AttemptFailed(Failure(phase=phase, kind="timeout", message=said[phase], billed=billed))


def _connect_failed(error: aiohttp.ClientConnectorError) -> AttemptFailed:
    """Why there is no connection, without addresses."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _failed("connect", "auth", "has a certificate that is not valid")
    if isinstance(error.os_error, PrivateAddress):
        return _failed(
            "connect", "auth", "has a public name that leads to a private address: set allow_private"
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return _failed("connect", "refused", "has a name that cannot be resolved")
    return _failed("connect", "refused", "refuses connections")
