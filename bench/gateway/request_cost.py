"""CPU time of this process per request to a remote model: the whole path without a socket to the client.

The provider is another process, whose time does not count. `--budget` has a budget that is kept exactly;
`--profile` prints where the time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import importlib
import json
import multiprocessing
import pstats
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headrace.api.app import create_app
from headrace.config.garbage_collection import keep_present_objects
from headrace.config.sources import load_settings

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / name) for name in ("providers", "api")]
fakes, fake_provider = importlib.import_module("fake"), importlib.import_module("fake_provider")


ASK = {"role": "user", "content": "Say it."}
BODY = {"model": "far", "messages": [ASK], "max_tokens": 100, "stream": True}


def provide(words: int, pause_ms: float, ready: Connection) -> None:
    """A provider that keeps connections, in a process of its own."""
    chunks = [fake_provider.delta(content="word ") for _ in range(words)]
    end = fake_provider.delta(finish="stop"), fake_provider.usage(9, words)
    stream = fake_provider.events(*chunks, *end)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(stream)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(asked.partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(size)
            except asyncio.IncompleteReadError:
                return
            if not pause_ms:
                writer.write(head + stream)
                continue
            writer.write(head)
            for event in stream.split(b"\n\n")[:-1]:  # each comes alone
                writer.write(event + b"\n\n")
                await asyncio.sleep(pause_ms / 1e3)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.sleep(600)

    asyncio.run(run())


async def ask(app: Any, body: bytes) -> int:
    """One request; the bytes of its reply."""
    sent = False
    size = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(60)
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal size
        assert message.get("status", 200) == 200, message
        size += len(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
        "state": {},
    }
    await app(scope, receive, send)
    return size


async def measure(port: int, folder: Path, arguments: argparse.Namespace) -> None:
    flags: dict[str, Any] = {
        "providers": {"work": {"base_url": f"http://127.0.0.1:{port}/v1", "dialect": "openai_chat"}},
        "prices": {"work/*": {"input": 1, "output": 10}},
        "store": str(folder / "store"),
    }
    if arguments.budget:
        flags["budgets"] = {"all": {"usd_per_month": 1000}}
    settings = load_settings(flags, environ={}, folders=[])
    app = create_app(fakes.FakeModel(), settings, None)  # type: ignore[arg-type]
    service = app.state.service
    service.serve_remote(settings, {"far": {"provider": "work"}})
    body = json.dumps(BODY).encode()
    profile = cProfile.Profile() if arguments.profile else None
    gc.collect()
    keep_present_objects()  # as the server does

    async def batch(requests: int) -> None:
        gate = asyncio.Semaphore(arguments.at_a_time)

        async def one() -> None:
            async with gate:
                await ask(app, body)

        await asyncio.gather(*(one() for _ in range(requests)))

    await batch(50)
    rounds: list[float] = []
    if profile is not None:
        profile.enable()
    for _ in range(5):
        start_s = time.process_time()
        await batch(arguments.requests)
        rounds.append((time.process_time() - start_s) / arguments.requests * 1e3)
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    print(json.dumps({"ms_per_request": sorted(round(one, 3) for one in rounds), **vars(arguments)}))
    await service.remote.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="in each of five rounds")
    parser.add_argument("--words", type=int, default=1, help="chunks of an answer")
    parser.add_argument("--pause-ms", type=float, default=0, help="between chunks, which then come alone")
    parser.add_argument("--at-a-time", type=int, default=16)
    parser.add_argument("--budget", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    given = arguments.words, arguments.pause_ms, theirs
    provider = multiprocessing.Process(target=provide, args=given, daemon=True)
    provider.start()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(ours.recv(), Path(folder), arguments))
    provider.kill()


if __name__ == "__main__":
    main()
