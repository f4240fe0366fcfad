"""A provider in a thread of this process: replies are bytes that a test writes, with any faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from in_process import Running

Reply = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request as it arrived, and the way to reply."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    writer: asyncio.StreamWriter

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def begin(self, status: int = 200, **headers: str) -> None:
        """The head of a reply that ends with the connection."""
        lines = [f"HTTP/1.1 {status} X", "connection: close"]
        given = {"content-type": "text/event-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
        lines += [f"{name}: {value}" for name, value in given.items() if value]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    def abort(self) -> None:
        self.writer.transport.abort()


def events(*bodies: Any, done: bool = True) -> bytes:
    """Server-sent events of OpenAI's kind."""
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of chat completions."""
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "far-1", "choices": [choice]}


def usage(prompt: int = 5, completion: int = 3, **more: Any) -> dict[str, Any]:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **more,
    }
    return {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": counts}


HELLO = (delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), delta(finish="stop"))


def say(*bodies: Any, status: int = 200, **headers: str) -> Reply:
    """A reply of whole events."""

    async def reply(exchange: Exchange) -> None:
        await exchange.begin(status, **headers)
        await exchange.send(events(*bodies))

    return reply


def send(data: bytes, status: int = 200, **headers: str) -> Reply:
    """A reply of bytes."""

    async def reply(exchange: Exchange) -> None:
        await exchange.begin(status, **headers)
        await exchange.send(data)

    return reply


def fail(status: int, body: Any = None, **headers: str) -> Reply:
    """An error reply."""
    text = json.dumps(body if body is not None else {"error": {"message": f"no {status}", "code": None}})
    return send(text.encode(), status, content_type="application/json", **headers)


@dataclass
class FakeProvider:
    """Replies with `replies` in turn, the last one again and again; `exchanges` are the requests."""

    replies: list[Reply] = field(default_factory=lambda: [say(*HELLO, usage())])
    exchanges: list[Exchange] = field(default_factory=list)
    port: int = 0
    gone: int = 0
    """Replies whose reader left."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            method, path, _ = first.split(" ")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
            raw = await reader.readexactly(int(headers.get("content-length", 0)))
            exchange = Exchange(method, path, headers, raw, writer)
            self.exchanges.append(exchange)
            at = min(len(self.exchanges), len(self.replies)) - 1
            await self.replies[at](exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone += 1
        finally:
            with contextlib.suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        return server


@contextlib.contextmanager
def running_provider(*replies: Reply) -> Iterator[FakeProvider]:
    """A provider while the block runs."""
    provider = FakeProvider(list(replies)) if replies else FakeProvider()
    loop, ready = asyncio.new_event_loop(), threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(provider.start())
        ready.set()
        loop.run_forever()
        server.close()
        loop.run_until_complete(asyncio.sleep(0.01))  # connections that are being accepted
        running = asyncio.all_tasks(loop)
        for task in running:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield provider
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


Gateway = tuple[Running, FakeProvider]
"""A server, and the provider of its remote model."""
