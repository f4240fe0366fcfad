"""OAuth 2.1 towards servers of tools, by the official SDK: login, and tokens that are kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from msgspec import Struct, field
from pydantic import AnyUrl

from headrace.config.mcp import McpSettings, OAuthSettings, oauth_of
from headrace.config.secrets import KeyOf, secret_of
from headrace.errors import UsageError
from headrace.struct_types import thread_safe
from headrace.tools.tool import Json

CALLBACK = "/callback"
MAX_RECORD = 2**18
_LOGGER = logging.getLogger("mcp.client.auth")
Hide = Callable[[str], None]


class TokenStore(Protocol):
    """Keeps a record for each server, encrypted."""

    def load(self, server: str) -> bytes | None:
        """The record of a server."""
        ...

    def save(self, server: str, record: bytes) -> None:
        """Keep a record in place of the one before."""
        ...


class OAuthRecord(Struct, frozen=True, kw_only=True):
    """What is kept of a server at `url`: tokens are for no other. `client`, `metadata` and `resource` are as
    the protocol writes them."""

    url: str
    tokens: Json | None = None
    expires_s: float | None = None
    client: Json | None = None
    metadata: Json | None = None
    resource: Json | None = None
    extra: Json = field(default_factory=dict[str, Any])


class KeptTokens:
    """The SDK's storage over a TokenStore. Where there is none, tokens live as long as the session."""

    def __init__(self, server: str, settings: McpSettings, store: TokenStore | None, hide: Hide) -> None:
        assert settings.url is not None
        self._server, self._url, self._store, self._hide = server, settings.url, store, hide
        self._raw: bytes | None = None
        self.is_login = False
        self.record = OAuthRecord(url=self._url)
        self.provider: OAuthClientProvider | None = None

    async def reload(self) -> bool:
        """Read again what is kept; whether it is another than before. A login begins anew: a client that was
        registered for another port of this machine would be refused."""
        if self._store is None or self.is_login:
            return False
        raw = await asyncio.get_running_loop().run_in_executor(None, self._store.load, self._server)
        if raw is None or raw == self._raw or len(raw) > MAX_RECORD:
            return False
        record = msgspec.json.decode(raw, type=thread_safe(OAuthRecord))
        if record.url != self._url:
            return False
        self._raw, self.record = raw, record
        self._hidden()
        return True

    async def get_tokens(self) -> OAuthToken | None:
        """See the SDK's TokenStorage."""
        found = self.record.tokens
        return None if found is None else OAuthToken.model_validate(found)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """See the SDK's TokenStorage."""
        before = (self.record.tokens or {}).get("refresh_token")
        if tokens.refresh_token is None and before:  # what was not replaced goes on
            tokens.refresh_token = str(before)
        expires_s = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._save(tokens=_plain(tokens), expires_s=expires_s)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """See the SDK's TokenStorage."""
        found = self.record.client
        return None if found is None else OAuthClientInformationFull.model_validate(found)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """See the SDK's TokenStorage."""
        await self._save(client=_plain(client_info))

    async def _save(self, **changes: Any) -> None:
        assert self.provider is not None
        context = self.provider.context
        found = {"metadata": context.oauth_metadata, "resource": context.protected_resource_metadata}
        changes |= {name: _plain(value) for name, value in found.items() if value is not None}
        self.record = msgspec.structs.replace(self.record, **changes)
        self._hidden()
        if self._store is not None:
            self._raw = msgspec.json.encode(self.record)
            store, raw = self._store, self._raw
            await asyncio.get_running_loop().run_in_executor(None, store.save, self._server, raw)

    def _hidden(self) -> None:
        for part in (self.record.tokens, self.record.client):
            for name in ("access_token", "refresh_token", "client_secret"):
                if value := (part or {}).get(name):
                    self._hide(str(value))

    def restore(self) -> None:
        """Give the SDK what it does not keep by itself, and needs to refresh a token after a restart."""
        assert self.provider is not None
        context, record = self.provider.context, self.record
        context.token_expiry_time = record.expires_s
        if record.metadata is not None and context.oauth_metadata is None:
            context.oauth_metadata = OAuthMetadata.model_validate(record.metadata)
        if record.resource is not None and context.protected_resource_metadata is None:
            resource = ProtectedResourceMetadata.model_validate(record.resource)
            context.protected_resource_metadata = resource
            context.auth_server_url = str(resource.authorization_servers[0])


class LoginNeeded(OAuthFlowError):
    """A person has to log in."""


class _Kept(OAuthClientProvider):
    """Authorization by a person, whose tokens are kept. Without a callback nobody is asked."""

    def __init__(
        self, kept: KeptTokens, *args: Any, fixed: OAuthClientInformationFull | None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        kept.provider, self._kept, self._fixed = self, kept, fixed

    async def _initialize(self) -> None:
        await super()._initialize()
        if self._fixed is not None:
            self.context.client_info = self._fixed
        self._kept.restore()

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if await self._kept.reload():  # another session or process has newer ones
            self._initialized = False
        flow = super()._auth_flow(request)
        try:
            outgoing = await flow.__anext__()
            while True:
                registers = (
                    outgoing is not request and outgoing.method == "POST" and self.context.client_info is None
                )
                if registers and self.context.redirect_handler is None:
                    raise LoginNeeded("it asks for a login")
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def _perform_authorization(self) -> httpx2.Request:
        if self.context.redirect_handler is not None:
            return await super()._perform_authorization()
        if self.context.can_refresh_token():  # the token ended before its time
            return await self._refresh_token()
        raise LoginNeeded("it asks for a login")


def auth_of(
    server: str,
    settings: McpSettings,
    store: TokenStore | None,
    hide: Hide,
    key_of: KeyOf | None = None,
    login: Login | None = None,
) -> OAuthClientProvider | None:
    """What authenticates requests to a server; None where its settings name no OAuth. With `login` a person
    may be asked."""
    given = oauth_of(settings, f"mcp.{server}")
    if given is None or settings.url is None:
        return None
    _LOGGER.propagate = False  # its messages quote answers
    _LOGGER.addHandler(logging.NullHandler())
    kept = KeptTokens(server, settings, store, hide)
    if given.grant == "client_credentials":
        found = _own(given, settings.url, kept, lambda name: _secret(given, name, server, key_of, hide))
        kept.provider = found
        return found
    kept.is_login = login is not None
    fixed = None
    port = given.port if login is None else login.port
    redirect = AnyUrl(f"http://127.0.0.1:{port}{CALLBACK}")
    metadata = OAuthClientMetadata(client_name="Headrace", redirect_uris=[redirect])
    if given.client_id is not None:
        secret = (
            None if given.client_secret is None else _secret(given, "client_secret", server, key_of, hide)
        )
        method = "none" if secret is None else given.auth_method
        fixed = OAuthClientInformationFull(
            client_id=given.client_id,
            client_secret=secret,
            redirect_uris=[redirect],
            token_endpoint_auth_method=method,
        )
    return _Kept(
        *(kept, settings.url, metadata, cast("Any", kept)),
        redirect_handler=None if login is None else login.show,
        callback_handler=None if login is None else login.wait,
        client_metadata_url=given.client_metadata_url,
        fixed=fixed,
    )


def _own(
    given: OAuthSettings, url: str, kept: KeptTokens, secret: Callable[[str], str]
) -> OAuthClientProvider:
    """Authorization of this program itself."""
    assert given.client_id is not None
    storage: Any = kept
    if given.private_key is None:
        return ClientCredentialsOAuthProvider(
            *(url, storage, given.client_id, secret("client_secret")),
            token_endpoint_auth_method=given.auth_method,
            issuer=given.issuer,
        )
    signed = SignedJWTParameters(
        issuer=given.client_id,
        subject=given.client_id,
        signing_key=secret("private_key"),
        signing_algorithm=given.algorithm,
    )
    return PrivateKeyJWTOAuthProvider(
        *(url, storage, given.client_id, signed.create_assertion_provider()), issuer=given.issuer
    )


def _secret(given: OAuthSettings, name: str, server: str, key_of: KeyOf | None, hide: Hide) -> str:
    found = secret_of(getattr(given, name), f"mcp.{server}.oauth.{name}", key_of)
    hide(found)
    return found


def _plain(value: Any) -> Json:
    return cast("Json", value.model_dump(mode="json", by_alias=True, exclude_none=True))


class Login:
    """Waits on 127.0.0.1 for the answer that the browser brings. `shown` gets the address to open."""

    def __init__(self, shown: Callable[[str], Awaitable[None]]) -> None:
        self._shown, self.port = shown, 0
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[AuthorizationCodeResult] | None = None

    async def open(self, port: int) -> None:
        """Listen; on any free port where `port` is 0. UsageError where it is taken."""
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=2**14)
        except OSError as error:
            raise UsageError(f"port {port} of 127.0.0.1 is not free ({error.strerror})") from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def show(self, url: str) -> None:
        """Ask the person. The address comes from the server: OAuthFlowError unless it is one of the web."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise OAuthFlowError("its login is at no address of the web")
        await self._shown(url)

    async def wait(self) -> AuthorizationCodeResult:
        """The answer."""
        assert self._answer is not None
        try:
            return await self._answer
        finally:
            self._answer = asyncio.get_running_loop().create_future()  # of the next, should there be one

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            said = self._heard(head)
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            said = None
        status, text = ("404 Not Found", "not found") if said is None else ("200 OK", said)
        body = f"<!doctype html><title>Headrace</title><p>{text}</p>".encode()
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            "Content-Security-Policy: default-src 'none'\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        with suppress(OSError):
            await writer.drain()
        writer.close()

    def _heard(self, head: bytes) -> str | None:
        """What the browser is told; None for what is no answer."""
        method, target, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        parts = urlsplit(target)
        fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if method != "GET" or parts.path != CALLBACK or not {"code", "error"} & set(fields):
            return None
        assert self._answer is not None
        if not self._answer.done():
            if "code" in fields:
                self._answer.set_result(
                    AuthorizationCodeResult(
                        code=fields["code"], state=fields.get("state"), iss=fields.get("iss")
                    )
                )
            else:
                self._answer.set_exception(OAuthFlowError(f"the login was refused: {fields['error'][:100]}"))
        return "You may close this page." if "code" in fields else "The login was refused."
