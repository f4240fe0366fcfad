"""L3: 500 readers that have stopped reading, beside 100 that read."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import in_process
import pytest
from fake import FakeEngine, FakeModel
from in_process import Running, running_server
from load_client import fetch, percentile, post

import headrace.api.http.bounded_protocol
from headrace.api.http.server import bind
from headrace.config.settings import Settings
from headrace.inference.engine_run import EngineRun

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
STEP_S = 0.1  # enough for test, server and engine, which share a process
TEXT = "x" * 4000  # of each step
LIMIT_BYTES = 256 * 1024


def stalled_reader(port: int) -> socket.socket:
    """A client that asks for much and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 4000}
    connection.sendall(post(CHAT, body))
    return connection


def bind_with_small_buffers(settings: Settings) -> socket.socket:
    """The system keeps little for a reader, so that what it does not read soon waits in the server."""
    listener = bind(settings)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    return listener


async def live_gaps_ms(port: int, readers: int, tokens: int) -> list[float]:
    body = {"messages": MESSAGES, "stream": True, "max_tokens": tokens}
    exchanges = await asyncio.gather(
        *(fetch(port, post(CHAT, body), keep_body=False) for _ in range(readers))
    )
    assert all(one.body.endswith(b"data: [DONE]\n\n") for one in exchanges)
    return [1000 * gap for one in exchanges for gap in one.gaps_s]


class Buffers:
    """The most that has waited for any one reader: in the reply, and in its connection."""

    def __init__(self, server: Running, patch: pytest.MonkeyPatch) -> None:
        self.most = 0
        receive = EngineRun._receive

        def noted(run: EngineRun, index: int, events: list[Any]) -> None:
            receive(run, index, events)
            self.pending = max(self.pending, run._waiting_bytes)

        self.pending = 0
        self._server = server
        patch.setattr(EngineRun, "_receive", noted)

    def look(self) -> None:
        for protocol in list(self._server.server.server_state.connections):
            transport = protocol.transport
            self.most = max(self.most, transport.get_write_buffer_size() if transport else 0)


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """As a server does at its start: looking through all of pytest takes the collector 0.3 s."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.alone
@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize(("stall_s", "tokens"), [(8.0, 30), pytest.param(60.0, 400, marks=pytest.mark.soak)])
def test_l3_stalled_readers(monkeypatch, show: Callable[[str], None], stall_s: float, tokens: int) -> None:
    """From when they have stalled to when they are cut; before that nobody can tell them from others."""
    monkeypatch.setattr(in_process, "bind", bind_with_small_buffers)
    engine = FakeEngine(pause_s=STEP_S)
    engine.answer = [TEXT] * 4000  # type: ignore[assignment]
    model = FakeModel(engine=engine)
    with running_server(model) as server:
        start_s = time.perf_counter()
        alone = asyncio.run(live_gaps_ms(server.port, 100, tokens // 2))
        slowness = max(1.0, (time.perf_counter() - start_s) / (tokens // 2) / STEP_S)  # of this machine, now
        stall_s *= slowness
        monkeypatch.setattr(headrace.api.http.bounded_protocol, "STALL_S", stall_s)
        buffers = Buffers(server, monkeypatch)
        start_s = time.perf_counter()
        stalled = [stalled_reader(server.port) for _ in range(500)]
        while len(engine.held_requests) < 500:
            assert time.perf_counter() - start_s < 60 * slowness, "readers who read nothing are generated for"
            time.sleep(0.01)
        held_s = time.perf_counter() - start_s

        async def beside() -> list[float]:
            reading = asyncio.create_task(live_gaps_ms(server.port, 100, tokens))
            while not reading.done():
                buffers.look()
                await asyncio.sleep(0.05)
            return await reading

        gaps = asyncio.run(beside())
        while engine._running:  # cut: cancelled, and so gone from the engine
            buffers.look()
            time.sleep(0.02)
            assert time.perf_counter() - start_s < 60 * slowness + 3 * stall_s, "stalled readers are kept"
        cut_s = time.perf_counter() - start_s
        for connection in stalled:
            connection.close()
        alone += asyncio.run(live_gaps_ms(server.port, 100, tokens // 2))  # others use the machine as well
    model.close()
    assert buffers.pending + buffers.most <= LIMIT_BYTES
    assert cut_s > stall_s
    assert len(set(model.engine.cancelled)) >= 500
    alone_ms, beside_ms = percentile(alone, 0.99), percentile(gaps, 0.99)
    show(
        f"at most {buffers.pending:,} + {buffers.most:,} bytes wait for a reader (reply + connection); all "
        f"500 were held after {held_s:.1f} s and cut after {cut_s:.1f} s (deadline {stall_s:g} s); gaps of "
        f"the live ones p99 {alone_ms:.1f} ms without, {beside_ms:.1f} ms with them "
        f"({beside_ms / alone_ms - 1:+.1%})"
    )
