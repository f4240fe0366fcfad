"""Middleware: request ids, Host and Origin checks, CORS, API keys, limits. Every request passes here."""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.anthropic.errors import MESSAGES_PATH
from headrace.api.google.errors import CLIENT_HEADERS as GOOGLE_HEADERS
from headrace.api.google.errors import PATHS as GOOGLE_PATHS
from headrace.api.google.errors import SHARED_PATH
from headrace.api.http.api_keys import check_scope
from headrace.api.http.call_context import HttpCall
from headrace.api.http.cors import with_cors
from headrace.api.http.errors import Forbidden, Unauthorized, error_response
from headrace.api.http.explaining import HEADER, Explaining
from headrace.api.http.idempotency import HEADER as IDEMPOTENCY_KEY
from headrace.api.http.idempotency import Recording
from headrace.api.http.several_fronts import check_front
from headrace.api.service import Service
from headrace.config.settings import Settings
from headrace.config.stderr_log import LOG_FIELDS
from headrace.errors import HeadraceError, InvalidRequest
from headrace.inference.accounts import Account, ReadLimits
from headrace.inference.call_context import HOPS, CallContext
from headrace.storage.database import Database
from headrace.storage.keys import Keys
from headrace.storage.ledger_store import shared_store
from headrace.telemetry.trace_context import MAX_STATE, TRACEPARENT, TRACESTATE

WARNINGS_HEADER = b"x-headrace-warnings"
WARNING_BYTES = 4096  # clients read headers of at least 8 KiB
OPEN_PATHS = frozenset({"/health", "/ready"})
PAGE_PATH = "/page/"
# What decides who is served what: of two such headers this server and a proxy might each believe another one.
KEY_HEADERS = ("x-api-key", "x-goog-api-key")  # Anthropic's and Google's; OpenAI's is Authorization
SINGLE_HEADERS = ("host", "origin", "authorization", *KEY_HEADERS, "content-type", "content-encoding")
_CLIENT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ServerMiddleware:
    """ASGI middleware. Stands outside everything, so that refusals and failures have a request id too."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._keys = service.keys
        self._reads = ReadLimits()
        self._configure(service.settings)

    def _configure(self, settings: Settings) -> None:
        """Take over settings, at the start and when they have been read again."""
        self._settings = settings
        self._cors = with_cors(self._admit, settings.cors_origins) if settings.cors_origins else None
        self._hosts = {"localhost", *(name.lower() for name in settings.allowed_hosts)}
        self._loopback = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and pass on, or reply with the refusal; then the call is counted and logged."""
        if scope["type"] != "http" or "headrace.call" in scope:  # the server's own calls were let in before
            await self._app(scope, receive, send)
            return
        if self._settings is not self._service.settings:
            self._keys.configure(self._service.settings)
            self._configure(self._service.settings)
        headers = Headers(scope=scope)
        path = scope["path"]
        if path.startswith(SHARED_PATH) and any(name in headers for name in GOOGLE_HEADERS):
            path = GOOGLE_PATHS + path.removeprefix("/v1/")  # which version 1 shares with OpenAI's API
            scope = {**scope, "path": path}
        sent = headers.get("x-request-id", "")
        nonce = secrets.token_hex(16)
        request_id = sent if _CLIENT_ID.fullmatch(sent) else f"req_{nonce}"
        call = HttpCall(
            request_id=request_id,
            booking_id=f"{sent}.{nonce[:16]}" if request_id == sent else request_id,
            nonce=nonce,
            method=scope["method"],
            path=path,
            account=self._keys.everybody,
            traceparent=headers.get(TRACEPARENT, "")[: MAX_STATE + 1],
            tracestate=headers.get(TRACESTATE, "")[: MAX_STATE + 1],
            hops=_hops(headers.get(HOPS, "")),
            explain=scope["method"] == "POST" and headers.get(HEADER, "").lower() in ("1", "true"),
            no_store="no-store" in headers.get("cache-control", "").lower(),
        )
        if "anthropic-version" in headers and call.path.startswith("/v1/models"):
            call.surface = MESSAGES_PATH  # this path is of two surfaces
        scope["headrace.call"] = call
        if self._service.tracing is not None:
            call.trace = self._service.tracing.begin(call.trace, call.path)
        if self._settings.log_format == "json":
            LOG_FIELDS.set({"trace_id": call.trace.trace_id, "request_id": request_id})

        async def send_with_headers(message: Message) -> None:
            nonlocal send
            if message["type"] == "http.response.start":
                if call.explain:
                    send = Explaining(call, send)
                call.status, call.is_whole = message["status"], False
                self._release_body(call)
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"request-id", request_id.encode()),  # as Anthropic calls it
                    *call.account.headers(),
                    *_encoded(call.reply_headers),
                    *warning_headers(call),
                ]
            await send(message)
            if not message.get("more_body", message["type"] != "http.response.body"):
                call.is_whole = True

        try:
            await self._pass_on(call, headers, scope, receive, send_with_headers)
        finally:
            self._service.ended(call)

    async def _pass_on(
        self, call: HttpCall, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        try:
            _check_path(scope["path"])
            _check_headers(headers)
            self._check_host(headers)
        except HeadraceError as error:
            call.fail(error)
            await error_response(error, call)(scope, receive, send)
            return
        # A browser that asks what a page may send is answered before the key: it sends none with that.
        await (self._cors or self._admit)(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: HttpCall = scope["headrace.call"]
        with ExitStack() as held:
            try:
                if not self._is_open(call):
                    await self._keys.refresh()
                    call.account = self._account(Headers(scope=scope))
                check_scope(call)
                call.client = call.account.name or _address(scope)
                if self._service.fronts > 1:
                    check_front(call, Headers(scope=scope), is_shared=self._service.is_shared)
                if call.method == "POST":  # what is posted makes work, everything else reads
                    if IDEMPOTENCY_KEY in (headers := Headers(scope=scope)):
                        found = await self._service.idempotent.begin(headers[IDEMPOTENCY_KEY], call, scope)
                        if not isinstance(found, Recording) or found.call is not call:
                            self._reads.take(call.client, self._settings.key_read_rpm)
                            await self._service.idempotent.repeat(found, call, scope, receive, send)
                            return
                        held.callback(found.end)
                        receive = found.receiving(receive, scope)
                        send = found.sending(send)
                    held.enter_context(self._service.gate.admitted(call))
                    await call.account.enter_shared(held)
                    if self._service.journal is not None:
                        journaled = await self._service.journal.begin(call, scope)
                        if journaled is not None:
                            held.callback(journaled.end)
                            receive, send = journaled.receiving(receive), journaled.sending(send)
                    held.callback(self._release_body, call)
                elif call.path not in OPEN_PATHS:
                    self._reads.take(call.client, self._settings.key_read_rpm)
            except HeadraceError as error:
                call.fail(error)
                await error_response(error, call)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _release_body(self, call: HttpCall) -> None:
        if call.body_bytes:
            self._service.bodies.release(call)

    def _check_host(self, headers: Headers) -> None:
        """Refuse foreign names on a loopback address: a web page must not reach it by DNS rebinding."""
        if not self._loopback:
            return
        host = host_name(headers.get("host", ""))
        if not self._is_ours(host):
            raise Forbidden(
                f"the Host header names {host[:80]!r}, this server answers to localhost: "
                "start it with --allowed-hosts for other names"
            )
        origin = headers.get("origin")
        if origin is None or (self._cors is not None and self._cors.is_allowed_origin(origin)):
            return
        if not self._is_ours(host_name(origin.partition("//")[2])):
            raise Forbidden(
                f"pages of {origin[:80]!r} may not call this server: start it with --cors-origins for them"
            )

    def _is_ours(self, host: str) -> bool:
        return host in self._hosts or is_loopback(host)

    def _is_open(self, call: HttpCall) -> bool:
        """Whether a call needs no key: signs of life, and the page, which asks for the key itself."""
        if call.path in OPEN_PATHS:
            return True
        is_page = call.path == "/" or call.path.startswith(PAGE_PATH)
        return is_page and call.method in ("GET", "HEAD") and not self._settings.disable_page

    def _account(self, headers: Headers) -> Account:
        """The account of the caller's key, or where the server has no keys that of everybody."""
        if not self._keys.required:
            return self._keys.everybody
        scheme, _, token = headers.get("authorization", "").partition(" ")
        others = next((headers[name] for name in KEY_HEADERS if name in headers), "")
        sent = token.strip() if scheme.lower() == "bearer" else others
        account = self._keys.find(sent.encode("latin-1"))
        if account is None:
            said = (
                "is not valid" if sent else "is missing: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            )
            raise Unauthorized(f"the API key {said}")
        return account


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), text.encode("latin-1", "replace")) for name, text in headers.items()]


def _hops(sent: str) -> tuple[str, ...]:
    """The servers that a request has passed; what is no list of them counts as none."""
    found = tuple(word.strip() for word in sent.split(",")) if sent else ()
    return found if all(_CLIENT_ID.fullmatch(word) for word in found) else ()


def warning_headers(call: CallContext) -> list[tuple[bytes, bytes]]:
    """The warnings of a call as JSON, for replies whose bodies have no place for them, such as lists. Only
    the first ones where all are too long for a header."""
    if not call.warnings:
        return []
    said = [{"param": one.param, "message": one.message} for one in call.warnings]
    while len(text := json.dumps(said)) > WARNING_BYTES:
        said = said[: len(said) // 2]
    return [(WARNINGS_HEADER, text.encode())]


def _check_path(path: str) -> None:
    """Refuse control characters: a route may match before a line end at which a table of scopes does not."""
    if not path.isprintable():
        raise InvalidRequest("the path has control characters: send it without", code="invalid_path")


def _check_headers(headers: Headers) -> None:
    """Refuse a request that has a deciding header twice, or one that says neither yes nor no."""
    for name in SINGLE_HEADERS:
        count = len(headers.getlist(name))
        if count > 1:
            raise InvalidRequest(f"the request has {count} {name} headers: send one", code="duplicate_header")
    asked = headers.get(HEADER, "0")
    if asked.lower() not in ("0", "1", "false", "true"):
        raise InvalidRequest(f"{HEADER} is {asked[:20]!r}: it is 1, or 0", param=HEADER)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _without_body(send: Send) -> Send:
    """`send` for a HEAD request: the headers of a GET, and then the end."""
    ended = False

    async def send_headers(message: Message) -> None:
        nonlocal ended
        if message["type"] != "http.response.body":
            await send(message)
        elif not ended:
            ended = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_headers


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether `host` is an address (or the name) of this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)  # nearly all clients name the server in the same way
def host_name(header: str) -> str:
    """The Host header (or what follows the scheme in Origin) without its port, in lower case."""
    try:
        return (urlsplit("//" + header).hostname or "").lower()
    except ValueError:
        return ""


def exposed(settings: Settings) -> Sequence[str]:
    """Warnings about how the server is bound."""
    if is_loopback(settings.host) or needs_key(settings):
        return ()
    return (
        f"anyone who reaches {settings.host}:{settings.port} can use this server: make a key with"
        " `headrace keys add NAME`, set HEADRACE_API_KEY to one of your own, or bind 127.0.0.1",
    )


def needs_key(settings: Settings) -> bool:
    """Whether requests need a key: one of the settings, or one that the store has or had."""
    if settings.api_key or settings.admin_api_key:
        return True
    database = Database(settings.store_file)
    store = shared_store(database, settings)
    try:
        return Keys(store).ever()
    finally:
        store.close()
        database.close()
