"""Connections to the Qdrant server of indexes: bounded replies, typed errors."""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import msgspec
from qdrant_client import QdrantClient
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from headrace.config.search_settings import IndexStore
from headrace.config.secrets import secret_of
from headrace.errors import StoreError
from headrace.providers.failure import shown
from headrace.search.index import IndexBusy, IndexDamaged, IndexUnreachable

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
"""Of one reply."""
TURN_S = 5
MOST = 16
MAX_REPLY = 256 * 2**20
"""Bytes of a reply that are read."""
LEAST_VERSION = (1, 10)
MAX_SAID = 300
"""Characters of what a server says of an error."""
PORT = 6333


class QdrantPool:
    """Safe to share between threads and indexes. The API key is in no message."""

    def __init__(self, store: IndexStore, where: str) -> None:
        """`where` is the setting's place, for errors about its secret."""
        self._store, self._where = store, where
        self._lock, self._turns = threading.Lock(), threading.BoundedSemaphore(MOST)
        self._client: QdrantClient | None = None
        self._key: str | None = None

    @contextmanager
    def use(self, name: str) -> Generator[QdrantClient]:
        """The client, for the index of that name. It raises typed errors."""
        if not self._turns.acquire(timeout=TURN_S):
            raise IndexBusy(
                f"{MOST} other requests use the Qdrant server of the index {name}: try again later",
                reason="index",
            )
        try:
            with typed(name, lambda: self._key):
                yield self._opened(name)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _opened(self, name: str) -> QdrantClient:
        with self._lock:
            if self._client is not None:
                return self._client
        client = self._connected()
        try:
            _check_version(client.info().version, name)
        except BaseException:
            client.close()
            raise
        with self._lock:
            if self._client is None:
                self._client = client
            else:
                client.close()
            return self._client

    def _connected(self) -> QdrantClient:
        store = self._store
        assert store.store is not None
        key = None if store.secret is None else secret_of(store.secret, f"{self._where}.secret")
        self._key = key
        parts = urlsplit(store.store)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        scheme = "http" if parts.scheme in ("qdrant", "http") else "https"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a key without TLS: the guide says it
            return QdrantClient(
                url=f"{scheme}://{host}:{parts.port or PORT}{parts.path.rstrip('/')}",
                api_key=key,
                check_compatibility=False,  # which asks from a thread, and only warns
                headers={"Accept-Encoding": "identity"},
                timeout=READ_TIMEOUT_S,
                transport=_Bounded(),
            )


class _Bounded(httpx.BaseTransport):
    """Replies of at most MAX_REPLY bytes that end in READ_TIMEOUT_S, uncompressed; no proxy, no redirect."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport(
            limits=httpx.Limits(max_connections=MOST, max_keepalive_connections=4)
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["timeout"] |= {"connect": CONNECT_TIMEOUT_S}
        end_s = time.monotonic() + READ_TIMEOUT_S
        try:
            response = self._inner.handle_request(request)
        except httpx.RemoteProtocolError:
            # A connection that was kept had been closed: nothing of the request was worked at, or what was
            # is the same a second time.
            response = self._inner.handle_request(request)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            response.close()
            raise httpx.DecodingError(
                f"the reply is compressed by {encoding[:40]!r}, which was not asked for"
            )
        stream = response.stream
        assert isinstance(stream, httpx.SyncByteStream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(stream, end_s),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._inner.close()


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, end_s: float) -> None:
        self._inner, self._end_s = inner, end_s

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._inner:
            size += len(part)
            if size > MAX_REPLY:
                raise httpx.DecodingError(f"the reply has more than {MAX_REPLY:,} bytes")
            if time.monotonic() > self._end_s:
                raise httpx.ReadTimeout("the reply does not end")
            yield part

    def close(self) -> None:
        self._inner.close()


def _check_version(version: str, name: str) -> None:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise StoreError(
            f"the Qdrant of {_named(name)} has the version {version[:40]!r}, {least} or later is needed"
        )


def _named(name: str) -> str:
    return f"the index {name}" if name else "the indexes"


@contextmanager
def typed(name: str, key: Callable[[], str | None]) -> Generator[None]:
    """Errors of the client become typed ones that name the index, and never say where the server is, nor
    the API key."""
    index = _named(name)
    try:
        yield
    except UnexpectedResponse as error:
        raise _of_status(error, index, key()) from None  # all that a server says may repeat the key
    except ResourceExhaustedResponse as error:
        raise IndexUnreachable(f"the Qdrant server of {index} has too much to do", reason="index") from error
    except ResponseHandlingException as error:
        source = error.source
        if isinstance(source, httpx.TransportError):
            what = "does not answer"
            if isinstance(source, httpx.TimeoutException):
                what = f"did not answer in {READ_TIMEOUT_S} s"
            raise IndexUnreachable(f"the Qdrant server of {index} {what}", reason="index") from error
        if isinstance(source, httpx.DecodingError):
            raise StoreError(f"the Qdrant server of {index} failed: {source}") from error
        raise StoreError(f"what the server of {index} replies is not of Qdrant") from error
    except msgspec.ValidationError as error:
        raise IndexDamaged(
            f"the collection of {index} holds what Headrace has not written ({error}): delete the index and"
            " ingest again"
        ) from error
    except (ApiException, AssertionError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise StoreError(f"what the server of {index} replies is not of Qdrant") from error


def _of_status(error: UnexpectedResponse, index: str, key: str | None) -> Exception:
    status = error.status_code or 0
    if status in (401, 403):
        return IndexUnreachable(f"the Qdrant server of {index} refuses the API key", reason="index")
    if status == 404:
        return IndexDamaged(f"{index} has no collection in its Qdrant: delete the index and ingest again")
    if status in (408, 429, 502, 503, 504):
        return IndexUnreachable(f"the Qdrant server of {index} does not answer ({status})", reason="index")
    if 300 <= status < 400:
        return StoreError(
            f"the Qdrant server of {index} redirects ({status}), which is not followed: set the address where"
            " it is"
        )
    return StoreError(f"the Qdrant server of {index} failed ({status}): {_said(error, key)}")


def _said(error: UnexpectedResponse, key: str | None) -> str:
    """What a server says of an error, bounded and in one line."""
    text = error.content[:2000].decode("utf-8", "replace")
    found = re.search(r'"error"\s*:\s*"((?:[^"\\]|\\.)+)', text)
    return shown(found[1], key)[:MAX_SAID] if found else "it does not say why"
