"""A server of tools as a child process: JSON lines over its stdin and stdout, each of bounded length.

The SDK's own transport reads lines of any length, passes variables on and sets no limits.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams  # pyright: ignore[reportPrivateImportUsage]
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter
from msgspec import Struct

import headrace.isolation

MAX_MESSAGE = 4 * 2**20
"""Bytes of one message."""
MAX_FLOOD, MAX_UNASKED = 16 * 2**20, 4096
"""Bytes, and messages, between two messages that are sent to the server."""
MAX_FILES = 256
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Of the environment: what programs need to start, and nothing that may be secret."""
GRACE_S = 2.0
_LAUNCHER = Path(headrace.isolation.__file__).with_name("limited_exec.py")
_TAIL = 2048


class ChildProgram(Struct, frozen=True):
    """What is started: `variables` are added to the few that every program gets."""

    words: Sequence[str]
    variables: Mapping[str, str]
    memory: int


class Watch:
    """What a transport has seen of its server: the end of what it writes to stderr, and why it ended."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self.said = b""
        self.cause = ""

    def end(self, cause: str) -> None:
        """The first cause counts."""
        self.cause = self.cause or cause
        self._ended()


@asynccontextmanager
async def child_process(program: ChildProgram, watch: Watch) -> AsyncGenerator[TransportStreams]:
    """The streams of a child that is ended, with all that it started, when the block is left."""
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_LAUNCHER), str(program.memory), str(MAX_FILES), *program.words),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment | dict(program.variables),
        start_new_session=True,
        limit=MAX_MESSAGE,
    )
    writer_in, reader_out = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent_in, sent_out = anyio.create_memory_object_stream[SessionMessage](0)
    pipes = _Pipes(process, watch)
    tasks = [
        asyncio.create_task(pipes.read(writer_in)),
        asyncio.create_task(pipes.write(sent_out)),
        asyncio.create_task(pipes.keep_tail()),
    ]
    try:
        yield reader_out, sent_in
    finally:
        for stream in (reader_out, sent_in):
            stream.close()
        ending = asyncio.ensure_future(_end(process, tasks, is_patient=not watch.cause))
        with suppress(asyncio.CancelledError):
            await asyncio.shield(ending)
        await ending
        for stream in (writer_in, sent_out):
            stream.close()


class _Pipes:
    """Moves messages between a process and the session."""

    def __init__(self, process: Process, watch: Watch) -> None:
        self._process, self._watch = process, watch
        self._bytes = self._messages = 0

    async def read(self, session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert self._process.stdout is not None
        cause = "its program ended"
        try:
            while line := await self._line():
                self._bytes += len(line)
                self._messages += 1
                if self._bytes > MAX_FLOOD or self._messages > MAX_UNASKED:
                    cause = (
                        f"it has sent more than {MAX_UNASKED:,} messages or {MAX_FLOOD:,} bytes that nothing "
                        "asked for"
                    )
                    break
                message = _message(line)
                if message is not None:
                    await session.send(SessionMessage(message))
        except asyncio.LimitOverrunError:
            cause = f"it has sent a message of more than {MAX_MESSAGE:,} bytes"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            pass
        finally:
            self._watch.end(cause)
            session.close()

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def write(self, session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None
        with suppress(anyio.ClosedResourceError, ConnectionError):
            async for message in session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._bytes = self._messages = 0
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()

    async def keep_tail(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(_TAIL):
            self._watch.said = (self._watch.said + part)[-_TAIL:]


def _message(line: bytes) -> JSONRPCMessage | None:
    """A message; None for what is none, as logs on stdout are. A reply that cannot be read, such as one with
    half of a surrogate pair, is an error, so that nobody waits for it."""
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line)
    try:
        found: object = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    reply = cast("dict[str, object]", found)
    number = reply.get("id")
    if "method" in reply or not isinstance(number, int | str):
        return None
    said = ErrorData(code=PARSE_ERROR, message="the reply is no valid message of JSON-RPC")
    return JSONRPCError(jsonrpc="2.0", id=number, error=said)


async def _end(process: Process, tasks: Sequence[asyncio.Task[None]], *, is_patient: bool) -> None:
    """Close stdin, wait, then end the group of processes; at once where nothing good is expected of it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert process.stdin is not None
    process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL) if is_patient else (signal.SIGKILL,):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await _exited(process)
            break
    with suppress(ProcessLookupError, PermissionError):  # what it has started and left behind
        os.killpg(process.pid, signal.SIGKILL)
    transport = getattr(process, "_transport", None)  # a descendant may hold a pipe open
    if transport is not None:
        transport.close()


async def _exited(process: Process) -> None:
    """`process.wait` also waits for the ends of pipes, which descendants may hold."""
    while process.returncode is None:
        await asyncio.sleep(0.01)
