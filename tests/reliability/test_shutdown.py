"""F2: SIGTERM with 200 streams in flight, and a second one."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest
from load_client import Exchange, begin, fetch, finish, post
from served import Served, served

STREAMS = 200
DONE = b"data: [DONE]\n\n"


def ask(number: int, tokens: int) -> bytes:
    body = {"prompt": f"{number}", "max_tokens": tokens, "seed": number, "stream": True, "ignore_eos": True}
    return post("/v1/completions", body)


async def stop_under_way(server: Served, tokens: int, signals: int) -> tuple[list[Exchange], Exchange]:
    """What became of the streams, and of a request that came after the signal."""
    exchanges = [await begin(server.port, ask(number, tokens)) for number in range(STREAMS)]
    for exchange in exchanges:
        await exchange.started.wait()
    server.process.send_signal(signal.SIGTERM)
    late = await fetch(server.port, ask(0, 1))
    while late.status == 200:  # the signal was on its way
        late = await fetch(server.port, ask(0, 1))
    for _ in range(signals - 1):
        server.process.send_signal(signal.SIGTERM)
    return [await finish(exchange) for exchange in exchanges], late


@pytest.mark.parametrize(("tokens", "signals"), [(60, 1), (8000, 2)], ids=["drains", "second-signal"])
def test_f2_sigterm_with_200_in_flight(tiny: Path, show, tokens: int, signals: int) -> None:
    flags = ("--max-num-seqs", "200", "--kv-cache-memory", "64M", "--shutdown-timeout", "60")
    with served("novelette" if signals == 2 else tiny, *flags) as server:
        tokens = min(tokens, 400)
        family = [psutil.Process(server.process.pid)]
        family += family[0].children(recursive=True)
        exchanges, late = asyncio.run(stop_under_way(server, tokens, signals))
        assert server.process.wait(30) == 0
    assert not any(process.is_running() for process in family), "orphans"
    ends = Counter(
        "whole" if one.body.endswith(DONE) else "error" if b'"engine_stopped"' in one.body[-300:] else "cut"
        for one in exchanges
    )
    assert ends["cut"] == 0
    assert ends["error" if signals == 2 else "whole"], ends
    if signals == 1:
        assert ends["whole"] == STREAMS
    assert (late.status, late.headers["retry-after"]) == (503, "5")
    show(
        f"{ends['whole']} streams whole, {ends['error']} with an error event; exit code 0, no process is left"
    )
