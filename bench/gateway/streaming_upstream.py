"""An upstream that streams chat completions on loopback at a fixed pace, and a client that times every chunk.

Both stand in one process and on one event loop, so that one clock times a chunk from where it is written to
where it is read. The request's model says what comes back: `CHUNKS-MILLISECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = (
    '{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":'
    '{{"content":"{}"}},"finish_reason":{}}}]}}'
)
USAGE = (
    '{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":'
    '{{"prompt_tokens":9,"completion_tokens":{0},"total_tokens":{1}}}}}'
)
MARK = b"@"
STALL_S = 30.0


def _frame(data: str) -> bytes:
    line = f"data: {data}\n\n".encode()
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


class Upstream:
    """`arrived` has the time at which the request with each number came."""

    def __init__(self) -> None:
        self.arrived: dict[int, float] = {}
        self.port = 0

    async def start(self) -> None:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = json.loads(await _body(reader, head))
                chunks, pause_ms = (int(one) for one in body["model"].split("/")[-1].split("-"))
                self.arrived[int(body["messages"][-1]["content"].split()[-1])] = time.perf_counter()
                writer.write(HEAD)
                for at in range(chunks):
                    if writer.is_closing():
                        return
                    if at:
                        await asyncio.sleep(pause_ms / 1000)
                    writer.write(_frame(CHUNK.format(f"@{time.perf_counter():.6f}@", "null")))
                ending = CHUNK.format("", '"stop"'), USAGE.format(chunks, 9 + chunks), "[DONE]"
                writer.write(b"".join(map(_frame, ending)) + b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"content-length:" in head:
        return await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
    body = b""
    while length := int(await reader.readline(), 16):
        body += (await reader.readexactly(length + 2))[:-2]
    await reader.readline()
    return body


@dataclass
class Streamed:
    """What a load came to. `chunks_s`: of each chunk from its writing to its reading; `requests_s`: of each
    request from its sending to its arrival upstream."""

    requests: int = 0
    failed: int = 0
    elapsed_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list[float])
    requests_s: list[float] = field(default_factory=list[float])
    error: str = ""


class Client:
    """Streams from a gateway, or from the upstream itself."""

    def __init__(self, upstream: Upstream, port: int, path: str, headers: dict[str, str], model: str) -> None:
        self._upstream, self._port, self._path = upstream, port, path
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._model = model
        self._number = 0

    async def answers(self) -> bool:
        """Whether a request succeeds."""
        try:
            await asyncio.wait_for(self._one(Streamed(), 1, 5), 10)
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
            return False
        return True

    async def load(self, streams: int, seconds: float, chunks: int, pause_ms: int) -> Streamed:
        """`streams` at the same time, one request after the other, for so long; then the last ones end."""
        found = Streamed()
        start_s = time.perf_counter()
        period_s = min(seconds / 2, chunks * pause_ms / 1000)

        async def user(at: int) -> None:
            await asyncio.sleep(period_s * at / streams)  # not all chunks at the same time
            while time.perf_counter() - start_s < seconds:
                try:
                    await asyncio.wait_for(self._one(found, chunks, pause_ms), STALL_S)
                    found.requests += 1
                except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError) as error:
                    found.failed += 1
                    found.error = repr(error)[:300]
                    await asyncio.sleep(0.1)

        await asyncio.gather(*(user(at) for at in range(streams)))
        found.elapsed_s = time.perf_counter() - start_s
        return found

    async def _one(self, found: Streamed, chunks: int, pause_ms: int) -> None:
        self._number += 1
        number = self._number
        body = json.dumps(
            {
                "model": self._model.format(f"{chunks}-{pause_ms}"),
                "messages": [{"role": "user", "content": f"Tell me of the sea {number}"}],
                "stream": True,
                "max_tokens": 1000,
            }
        ).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self._headers}content-type: application/json"
            f"\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            sent_s = time.perf_counter()
            writer.write(head.encode() + body)
            status = await reader.readline()
            if b" 200 " not in status:
                raise ValueError(status.decode() + (await reader.read(2000)).decode("utf-8", "replace"))
            seen = await _read(reader, found)
            if seen != chunks:
                raise ValueError(f"{seen} of {chunks} chunks came")
            found.requests_s.append(self._upstream.arrived.pop(number) - sent_s)
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, found: Streamed) -> int:
    """Read a stream to its end and time its chunks; how many there were."""
    seen, rest, is_done = 0, b"", False
    while data := await reader.read(65536):
        now_s = time.perf_counter()
        rest += data
        parts = rest.split(MARK)
        whole = len(parts) // 2 if len(parts) % 2 else (len(parts) - 1) // 2
        for at in range(whole):
            found.chunks_s.append(now_s - float(parts[2 * at + 1]))
        seen += whole
        rest = MARK.join(parts[2 * whole :])[-4096:]
        if b"[DONE]" in rest:
            is_done = True
            break
    if not is_done:
        raise ValueError(f"the stream ended without [DONE] after {seen} chunks: {rest[-300:]!r}")
    return seen
