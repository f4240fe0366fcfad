"""Many servers of tools as one: default deny, pins, sessions, breakers. Needs headrace[tools]."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.mcp import McpSettings, oauth_of
from headrace.config.secrets import KeyOf
from headrace.errors import HeadraceError, Overloaded, UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.loop_thread import LoopThread
from headrace.telemetry.trace_context import trace_headers
from headrace.tools.arguments import check_arguments, check_value
from headrace.tools.mcp.client import McpSession
from headrace.tools.mcp.oauth import Login, TokenStore
from headrace.tools.mcp.pins import (
    Lock,
    LockFile,
    PinnedServer,
    ToolState,
    definition_problem,
    difference,
    identity_of,
    merged_name,
    name_problem,
    pin_server,
)
from headrace.tools.tool import (
    Arguments,
    Json,
    ToolQuarantined,
    ToolRefused,
    ToolResult,
    ToolSpec,
    ToolUnavailable,
    UnknownTool,
)
from headrace.tools.toolbox import noted, tool_part
from headrace.tools.visible import visible

RELIST_S = 60.0
LOGIN_S = 300.0
"""For a person to log in."""
NO_TRACE: Mapping[str, str] = {}
MAX_SESSIONS = 8
"""Of a server: each key has its own."""
FAILURES = 3
"""In a row, after which a server is left alone."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


class ServerState(Struct, frozen=True, kw_only=True):
    """How a server stands: `error` is why it cannot be used at all, `said` what its program wrote to
    stderr."""

    name: str
    tools: tuple[ToolState, ...]
    error: str | None = None
    said: str = ""


class _Server:
    """What is known of one server. Belongs to the gateway's loop, but for `found` and `error`, which are
    replaced as a whole."""

    def __init__(self, name: str, settings: McpSettings) -> None:
        self.name, self.settings = name, settings
        self.sessions: dict[str, McpSession] = {}
        self.opening = asyncio.Lock()
        self.found: PinnedServer | None = None
        self.found_s = 0.0
        self.error: str | None = None
        self._states: tuple[PinnedServer | None, PinnedServer | None, dict[str, ToolState]] = (None, None, {})
        self._failures = 0
        self._closed_until_s = 0.0

    def check_breaker(self) -> None:
        """Raise ToolUnavailable while the server is left alone."""
        wait_s = self._closed_until_s - time.monotonic()
        if wait_s > 0:
            raise ToolUnavailable(
                f"{self.error or 'the server of tools failed'} ({self._failures} times in a row): it is "
                f"asked again in {wait_s:.0f} s"
            )

    def count(self, error: HeadraceError | None) -> None:
        """A use of the server has ended."""
        if error is None:
            self._failures, self.error = 0, None
            return
        self._failures, self.error = self._failures + 1, error.message
        if self._failures >= FAILURES:
            pause_s = FIRST_PAUSE_S * 2 ** min(self._failures - FAILURES, 10)
            self._closed_until_s = time.monotonic() + min(pause_s, LONGEST_PAUSE_S)

    def admits(self, key: str) -> bool:
        """Whether an API key of that name may use the server."""
        return not self.settings.keys or key in self.settings.keys

    def states(self, pin: PinnedServer | None) -> dict[str, ToolState]:
        """How each tool stands that was approved or is listed."""
        found = self.found
        if self._states[0] is not pin or self._states[1] is not found:
            both = (found.tools if found is not None else {}), (pin.tools if pin is not None else {})
            names = sorted({*both[0], *both[1]})
            self._states = pin, found, {name: self._state(name, names, pin, found) for name in names}
        return self._states[2]

    def _state(
        self, name: str, names: Sequence[str], pin: PinnedServer | None, found: PinnedServer | None
    ) -> ToolState:
        approved = pin.tools.get(name) if pin is not None else None
        listed = found.tools.get(name) if found is not None else None
        current = listed or approved
        assert current is not None
        problem = name_problem(self.name, name, names) or definition_problem(current.definition)
        if problem:
            return ToolState(visible(name)[:200], "refused", problem)
        if not any(fnmatchcase(name, pattern) for pattern in self.settings.allow):
            return ToolState(name, "denied", f"`allow` of [mcp.{self.name}] does not name it")
        if pin is None or approved is None:
            return ToolState(name, "unapproved", f"it is new: headrace mcp approve {self.name}")
        diff = f"headrace mcp diff {self.name}"
        if found is not None and found.identity != pin.identity:
            return ToolState(name, "changed", f"its server is another program or address: {diff}")
        if found is not None and listed is None:
            return ToolState(name, "changed", "its server does not list it any more")
        if current.sha256 != approved.sha256:
            return ToolState(name, "changed", f"it is not as it was approved: {diff}")
        return ToolState(name, "approved")


class McpGateway:
    """Tools of the servers in [mcp], as `server__tool`. Thread-safe; its loop has a thread of its own, so
    that servers hold nothing else up."""

    def __init__(
        self,
        servers: Mapping[str, McpSettings],
        lock: Path,
        key_of: KeyOf | None = None,
        *,
        tokens: TokenStore | None = None,
    ) -> None:
        """`tokens` keeps those of servers with OAuth."""
        self._servers = {name: _Server(name, settings) for name, settings in servers.items()}
        self._file = LockFile(lock)
        self._key_of, self._tokens = key_of, tokens
        self._thread = LoopThread()
        self._read: tuple[tuple[int, int], Lock] | None = None

    def specs(self, call: CallContext) -> list[ToolSpec]:
        """The approved tools that the call's key may use. No server is asked: one that fails takes nothing
        from the list."""
        lock = self._lock()
        return [
            _spec(server.name, pin.tools[name].definition)
            for server in self._servers.values()
            if server.admits(call.account.name) and (pin := lock.servers.get(server.name)) is not None
            for name, state in server.states(pin).items()
            if state.standing == "approved"
        ]

    def states(self, key: str | None = None) -> list[ServerState]:
        """How all servers that a key (None: any) may use stand, as far as that is known."""
        servers = self._lock().servers
        return [
            self._server_state(server, servers.get(server.name))
            for server in self._servers.values()
            if key is None or server.admits(key)
        ]

    async def run(self, name: str, arguments: Arguments, call: CallContext, key: str = "") -> ToolResult:
        """Call a tool by its merged name, from any loop."""
        with tool_part(call, name, arguments, name.partition("__")[0]) as (own, note):
            meta = trace_headers(own.trace, own.trace.span_id)
            work = self._run(name, arguments, call.account.name, key, meta)
            return noted(note, await asyncio.wrap_future(self._thread.submit(work)))

    def call(self, name: str, arguments: Arguments, key: str = "") -> ToolResult:
        """Call a tool and wait."""
        return self._thread.run(self._run(name, arguments, key))

    def checked(self, name: str) -> ServerState:
        """Ask a server for its tools, and compare them with what was approved. Waits."""
        server, pin, said = self._server(name), self._lock().servers.get(name), ""
        try:
            said = self._thread.run(self._asked(server))
        except HeadraceError as error:
            server.error = error.message
        state = self._server_state(server, pin)
        return ServerState(name=state.name, tools=state.tools, error=state.error, said=said)

    def difference(self, name: str) -> tuple[PinnedServer, str]:
        """A server as it is now, and what is not as it was approved. Waits; raises ToolUnavailable."""
        server, pin = self._server(name), self._lock().servers.get(name)
        self._thread.run(self._asked(server))
        assert server.found is not None
        return server.found, difference(pin, server.found)

    def approve(self, name: str, pin: PinnedServer) -> None:
        """Approve a server as it was seen."""
        self._file.write(self._server(name).name, pin)

    def log_in(self, name: str, shown: Callable[[str], Awaitable[None]]) -> int:
        """Get tokens for a server of a person, to whom `shown` brings an address, and keep them. Waits up to
        LOGIN_S; how many tools the server lists."""
        server = self._server(name)
        return self._thread.run(self._logged_in(server, shown))

    async def _logged_in(self, server: _Server, shown: Callable[[str], Awaitable[None]]) -> int:
        oauth = oauth_of(server.settings, f"mcp.{server.name}")
        if oauth is None or oauth.grant != "authorization_code":
            raise UsageError(
                f"nobody logs in to {server.name}: [mcp.{server.name}] needs url, and oauth = {{}}"
            )
        login = Login(shown)
        await login.open(oauth.port)
        settings = replace(server.settings, timeout=LOGIN_S)
        session = McpSession(server.name, settings, self._key_of, self._tokens, login)
        try:
            await session.open()
            return len(session.definitions)
        finally:
            await session.close()
            await login.close()

    def close(self) -> None:
        """End all servers."""
        sessions = [one for server in self._servers.values() for one in server.sessions.values()]
        for server in self._servers.values():
            server.sessions = {}
        if sessions:
            self._thread.run(_close(sessions))
        self._thread.close()

    def _server(self, name: str) -> _Server:
        if name not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise UsageError(f"there is no [mcp.{name[:40]}] in headrace.toml: there are {known}")
        return self._servers[name]

    def _lock(self) -> Lock:
        """The file, read again where it has changed."""
        try:
            status = self._file.path.stat()
            version = (status.st_mtime_ns, status.st_ino)
        except OSError:
            version = (0, 0)
        if self._read is None or self._read[0] != version:
            self._read = version, self._file.read()
            for server in self._servers.values():
                server.found = None  # it is compared anew
        return self._read[1]

    def _server_state(self, server: _Server, pin: PinnedServer | None) -> ServerState:
        tools = tuple(server.states(pin).values())
        error = server.error
        if error is None and pin is None:
            error = f"it was not approved: headrace mcp approve {server.name}"
        return ServerState(name=server.name, tools=tools, error=error)

    async def _run(
        self,
        name: str,
        arguments: Arguments,
        key: str,
        idempotency_key: str = "",
        trace: Mapping[str, str] = NO_TRACE,
    ) -> ToolResult:
        server_name, _, tool = name.partition("__")
        server = self._servers.get(server_name)
        if server is None or not tool or not server.admits(key):
            raise UnknownTool(f"there is no tool {name[:100]!r}", param="name")
        if time.monotonic() - server.found_s > RELIST_S:
            server.found = None  # it is compared anew
        pin = self._usable(server, tool)
        check_arguments(name, arguments, pin.tools[tool].definition["inputSchema"])
        server.check_breaker()
        try:
            session = await self._session(server, key)
            await session.relist(RELIST_S)
            _compare(server, session)
            self._usable(server, tool)
            result = await session.call(tool, arguments, idempotency_key, trace)
        except ToolUnavailable as error:
            server.count(error)
            raise
        server.count(None)
        return _checked(name, result, pin.tools[tool].definition)

    def _usable(self, server: _Server, tool: str) -> PinnedServer:
        """The server's pin. UnknownTool for what settings do not allow, ToolQuarantined for what a person has
        not approved as it is."""
        pin = self._lock().servers.get(server.name)
        state, name = server.states(pin).get(tool), merged_name(server.name, tool)[:100]
        if pin is None:
            raise ToolQuarantined(
                f"the server of tools {server.name!r} was not approved: headrace mcp approve {server.name}"
            )
        if state is None:
            raise UnknownTool(f"there is no tool {name!r}", param="name")
        if state.standing == "denied":
            raise UnknownTool(f"the tool {name!r} may not be used: {state.reason}", param="name")
        if state.standing != "approved":
            raise ToolQuarantined(f"the tool {name!r} may not be used: {state.reason}", param="name")
        return pin

    async def _session(self, server: _Server, key: str) -> McpSession:
        async with server.opening:
            live = {one: session for one, session in server.sessions.items() if not session.ended}
            server.sessions = live
            if key in live:
                return live[key]
            if len(live) >= MAX_SESSIONS:
                await _make_place(server)
            pin = self._lock().servers.get(server.name)
            identity = await self._identity(server)
            if pin is not None and identity != pin.identity:  # what changed is not even started
                server.found = PinnedServer(identity=identity, list_sha256="", tools=pin.tools)
                server.found_s = time.monotonic()
                raise ToolQuarantined(
                    f"the server of tools {server.name!r} is another program or address than approved: "
                    f"headrace mcp diff {server.name}"
                )
            session = McpSession(server.name, server.settings, self._key_of, self._tokens)
            session.identity = identity
            await session.open()
            server.sessions[key] = session
            return session

    async def _identity(self, server: _Server) -> Json:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, identity_of, server.settings)
        except OSError as error:
            said = error.strerror or str(error)
            raise ToolUnavailable(f"the server of tools {server.name!r} failed: {said}") from None

    async def _asked(self, server: _Server) -> str:
        """List the tools with a session of its own, which is ended; what the program said."""
        session = McpSession(server.name, server.settings, self._key_of, self._tokens)
        session.identity = await self._identity(server)
        try:
            await session.open()
            _compare(server, session)
            server.count(None)
        finally:
            await session.close()
        return session.said


def _compare(server: _Server, session: McpSession) -> None:
    """Take over what a session has found."""
    if session.seen is None:
        session.seen = pin_server(session.identity, session.definitions)
        server.found_s = time.monotonic()
    server.found = session.seen


async def _make_place(server: _Server) -> None:
    idle = [(one.used_s, key) for key, one in server.sessions.items() if not one.running]
    if not idle:
        raise Overloaded(
            f"{MAX_SESSIONS} keys use the server of tools {server.name!r} now: try again later",
            reason="tools",
        )
    await server.sessions.pop(min(idle)[1]).close()


async def _close(sessions: Sequence[McpSession]) -> None:
    await asyncio.gather(*(session.close() for session in sessions))


def _checked(name: str, result: ToolResult, definition: Json) -> ToolResult:
    """The result. Raises ToolUnavailable where its JSON is not what the tool's approved schema says."""
    schema = definition.get("outputSchema")
    if schema is None or result.is_error or result.structured is None:
        return result
    try:
        check_value(name, result.structured, schema)
    except ToolRefused as error:
        raise ToolUnavailable(f"the result is not as the tool says: {error.message}") from None
    return result


def _spec(server: str, definition: Json) -> ToolSpec:
    hints = cast("Json", definition.get("annotations") or {})
    return ToolSpec(
        name=merged_name(server, str(definition["name"])),
        description=visible(str(definition.get("description") or "")),
        parameters=cast("Json", definition["inputSchema"]),
        title=visible(str(definition["title"])) if definition.get("title") else None,
        output=cast("Json | None", definition.get("outputSchema")),
        reads_only=hints.get("readOnlyHint") is True,
        idempotent=hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True,
        server=server,
    )
