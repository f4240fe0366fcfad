"""One session with a server of tools, and what its results come to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, cast

import httpx2
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams  # pyright: ignore[reportPrivateImportUsage]
from mcp.client.auth import OAuthFlowError
from mcp_types import REQUEST_TIMEOUT

from headrace import __version__
from headrace.config.mcp import McpSettings
from headrace.config.secrets import KeyOf, secret_of, without
from headrace.tools.mcp.http import http_server
from headrace.tools.mcp.oauth import Login, LoginNeeded, TokenStore, auth_of
from headrace.tools.mcp.pins import MAX_TOOLS, PinnedServer
from headrace.tools.mcp.stdio import ChildProgram, Watch, child_process
from headrace.tools.tool import Arguments, Json, ToolImage, ToolResult, ToolTimeout, ToolUnavailable
from headrace.tools.visible import cut, visible

MAX_PAGES = 64
MAX_ITEMS = 64
MAX_IMAGE = 4 * 2**20
IDLE_S = 600.0
_SECRET_KINDS = ("env:", "file:", "key:")


class ServerSecrets:
    """The variables or headers of a server, with its secrets in them, and texts without these."""

    def __init__(self, name: str, settings: McpSettings, key_of: KeyOf | None) -> None:
        """UsageError where a secret is not there."""
        self.hidden: set[str] = set()
        where = f"mcp.{name}"
        self.variables = {
            key: self._value(str(value), f"{where}.env.{key}", key_of, plain=True)
            for key, value in settings.env.items()
        }
        self.headers = {
            key: self._value(str(value), f"{where}.headers.{key}", key_of, plain=False)
            for key, value in settings.headers.items()
        }

    def _value(self, value: str, where: str, key_of: KeyOf | None, *, plain: bool) -> str:
        if plain and not value.startswith(_SECRET_KINDS):
            return value
        secret = secret_of(value, where, key_of)
        self.hidden |= {secret, *secret.split()}  # of "Bearer TOKEN" the token alone, too
        return secret

    def shown(self, text: str, most: int = 300) -> str:
        """Text of the server as it may be in messages and logs."""
        return cut(visible(without(text, self.hidden)), most)[0]


class McpSession:
    """Lives on one event loop. `definitions` are the tools as they were listed last, as the protocol writes
    them, `seen` their pins once these were made. One that has ended is not used again."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        key_of: KeyOf | None = None,
        tokens: TokenStore | None = None,
        login: Login | None = None,
    ) -> None:
        """`tokens` keeps those of OAuth. With `login` a person may be asked to log in."""
        self._name, self._settings = name, settings
        self._secrets = ServerSecrets(name, settings, key_of)
        self._auth = auth_of(name, settings, tokens, self._secrets.hidden.add, key_of, login)
        self._stop = asyncio.Event()
        self._watch = Watch(self._stop.set)
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._stale = False
        self.identity: Json = {}
        self.definitions: list[Json] = []
        self.seen: PinnedServer | None = None
        self.listed_s = 0.0
        self.used_s = time.monotonic()
        self.running = 0

    @property
    def ended(self) -> bool:
        """Whether it is over, or about to be."""
        return self._stop.is_set()

    async def open(self) -> None:
        """Start the server or connect to it, and list its tools. Raises ToolUnavailable."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._own(ready))
        try:
            async with asyncio.timeout(self._settings.timeout):
                await asyncio.shield(ready)
        except TimeoutError:
            self._watch.end("it did not begin")
            await self.close()
            raise self._failed(f"it has not answered within {self._settings.timeout:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End it, and the server's process."""
        self._stop.set()
        task, self._task = self._task, None
        if task is not None:
            if self._client is None:  # it waits for the server
                task.cancel()
            with suppress(BaseException):
                await asyncio.shield(task)

    async def relist(self, after_s: float) -> None:
        """List the tools again where that is longer ago, or the server has said that they changed."""
        if self._stale or time.monotonic() - self.listed_s > after_s:
            try:
                async with asyncio.timeout(self._settings.timeout):
                    await self._list(self._live())
            except TimeoutError:
                await self.close()
                raise self._failed("it does not list its tools in time") from None
            except Exception as error:
                await self.close()
                raise self._failure(error) from None

    async def call(
        self, tool: str, arguments: Arguments, key: str = "", trace: Mapping[str, str] | None = None
    ) -> ToolResult:
        """Call a tool; a server that knows the `key` need not do twice what it has done. `trace` are the
        headers of W3C's Trace Context. Raises ToolUnavailable or ToolTimeout, after which the session has
        ended."""
        client, timeout_s = self._live(), self._settings.timeout
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        meta = {**(trace or {}), **({"idempotencyKey": key} if key else {})}
        if meta:
            params.meta = cast("types.RequestParamsMeta", meta)
        request = types.CallToolRequest(params=params)
        self.running += 1
        try:
            # The SDK's own call_tool checks results by the server's schema, whose patterns may take forever.
            result = await client.session.send_request(
                request, types.CallToolResult, request_read_timeout_seconds=timeout_s
            )
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                self._watch.end("a call took too long")
                await self.close()
                raise ToolTimeout(
                    f"{self._name}: {tool} has not answered within {timeout_s:g} s: what it did is not known"
                ) from None
            if error.code == types.CONNECTION_CLOSED or self.ended:
                await self.close()
                raise self._failure(error) from None
            return ToolResult(text=self._secrets.shown(f"error {error.code}: {error.message}"), is_error=True)
        except Exception as error:
            await self.close()
            raise self._failure(error) from None
        finally:
            self.running -= 1
            self.used_s = time.monotonic()
        return read_result(result, self._settings, self._secrets)

    @property
    def said(self) -> str:
        """The end of what the program has written to stderr."""
        return self._secrets.shown(self._watch.said.decode(errors="replace"), 2000)

    def _live(self) -> Client:
        if self._client is None or self.ended:
            raise self._failed("its connection has ended")
        return self._client

    async def _own(self, ready: asyncio.Future[None]) -> None:
        """The SDK's scopes begin and end in this task."""
        try:
            async with Client(
                self._transport(),
                cache=None,
                message_handler=self._heard,
                client_info=types.Implementation(name="headrace", version=__version__),
            ) as client:
                try:
                    await self._list(client)
                except Exception as error:
                    raise self._failure(error) from None  # before its program has ended because of it
                self._client = client
                ready.set_result(None)
                while not self.ended and (self.running or time.monotonic() - self.used_s < IDLE_S):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(IDLE_S / 10):
                            await self._stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(self._failure(error))
        finally:
            self._stop.set()
            if not ready.done():
                ready.cancel()

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        settings = self._settings
        if settings.url is not None:
            return http_server(settings.url, self._secrets.headers, settings.timeout, self._auth)
        words = [*settings.command, *settings.args]
        return child_process(ChildProgram(words, self._secrets.variables, settings.memory), self._watch)

    async def _heard(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True

    async def _list(self, client: Client) -> None:
        self._stale, self.listed_s = False, time.monotonic()
        found: list[Json] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            found += [_definition(tool) for tool in page.tools]
            if len(found) > MAX_TOOLS:
                raise self._failed(f"it lists more than {MAX_TOOLS} tools")
            cursor = page.next_cursor
            if cursor is None:
                self.definitions, self.seen = found, None
                return
        raise self._failed(f"its list of tools has more than {MAX_PAGES} pages")

    def _failure(self, error: BaseException) -> ToolUnavailable:
        """A typed error that tells nothing secret: what the SDK raises may quote messages."""
        while isinstance(error, BaseExceptionGroup):
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        if isinstance(error, ToolUnavailable):
            return error
        if self._watch.cause:
            return self._failed(self._watch.cause)
        if isinstance(error, MCPError):
            return self._failed(self._secrets.shown(f"error {error.code}: {error.message}"))
        if isinstance(error, LoginNeeded):
            return self._failed(f"it asks for a login: run `headrace mcp login {self._name}`")
        if isinstance(error, OAuthFlowError | httpx2.ConnectError):
            return self._failed(self._secrets.shown(str(error)) or "it cannot be reached")
        if isinstance(error, OSError):
            return self._failed(error.strerror or "it cannot be reached")
        return self._failed(f"its answer cannot be read ({type(error).__name__})")

    def _failed(self, cause: str) -> ToolUnavailable:
        return ToolUnavailable(f"the server of tools {self._name!r} failed: {cause}")


def _definition(tool: types.Tool) -> Json:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def read_result(result: types.CallToolResult, settings: McpSettings, secrets: ServerSecrets) -> ToolResult:
    """A result within its bounds; what is left out is said in its text."""
    left, texts, images, is_cut = settings.max_result, list[str](), list[ToolImage](), False
    for block in result.content[:MAX_ITEMS]:
        if isinstance(block, types.ImageContent) and settings.images and len(block.data) <= MAX_IMAGE:
            images.append(ToolImage(block.mime_type[:100], block.data))
            continue
        text, more = cut(visible(without(_text(block), secrets.hidden)), left)
        left -= len(text.encode())
        is_cut |= more
        texts.append(text)
    left_out = len(result.content) - MAX_ITEMS
    if left_out > 0:
        is_cut = True
        texts.append(f"[{left_out:,} more parts are left out]")
    if is_cut:
        texts.append(f"[the result was cut to {settings.max_result:,} bytes]")
    return ToolResult(
        text="\n".join(texts),
        structured=_structured(result.structured_content, settings.max_result, secrets.hidden),
        images=tuple(images),
        is_error=result.is_error,
        cut=is_cut,
    )


def _structured(value: Any, most: int, hidden: Iterable[str]) -> Any:
    if value is None:
        return None
    text = msgspec.json.encode(value)
    if len(text) > most:
        return None
    try:
        return msgspec.json.decode(without(text.decode(), hidden))
    except msgspec.DecodeError:  # a secret stood across its parts
        return None


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type} of {len(block.data):,} bytes, {block.mime_type[:100]}, is left out]"
        case types.ResourceLink():
            return f"[link to {block.uri}: {block.name}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case types.EmbeddedResource():
            return f"[{block.resource.uri}, which is no text, is left out]"
