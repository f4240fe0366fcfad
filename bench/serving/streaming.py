"""Streaming overhead: tokens per second through the HTTP server with a model whose steps cost nothing.

    python bench/serving/streaming.py [--streams 256] [--tokens 256] [--rounds 7]

The server is the real one (uvicorn with all middleware) in its own process on one core; the client has
another core. `events` measures only the HTTP layer, with an engine that only emits events; `engine` adds
the real engine, with an executor that computes nothing. With `step by step`, a step begins when every
stream has written the previous one: one write per stream and token, the most expensive case. With `free`,
steps do not wait, and queued events are written together. Rates per core are per CPU second of the server,
over all its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from load_client import Exchange, begin, finish, post
from msgspec.structs import replace
from stepper import NullExecutor, Round, StepEngine

from headrace import _native
from headrace.api.app import create_app
from headrace.api.http.server import Server, bind
from headrace.config.sources import load_settings
from headrace.engine.engine import Engine, EngineLimits
from headrace.executors.executor import ExecutorLimits
from headrace.kv.pages import PAGE_TOKENS
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.sampler import Sampler

TOKEN = 300
MESSAGES = [{"role": "user", "content": "Tell me of the sea."}]


class Lockstep:
    """Lets the engine continue when the event loop has written the previous step."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._written = threading.Event()

    def __call__(self) -> None:
        assert self.loop is not None
        self._written.clear()
        self.loop.call_soon_threadsafe(self._after, 3)  # deliver events, wake writers, write
        self._written.wait()

    def _after(self, turns: int) -> None:
        assert self.loop is not None
        if turns:
            self.loop.call_soon(self._after, turns - 1)
        else:
            self._written.set()


def make_model(kind: str, streams: int, tokens: int, after_step: Round) -> LoadedModel:
    """The bundled model's tokenizer and template, with an engine that computes nothing."""
    loaded = load_model("novelette", EngineOptions(max_num_seqs=1, threads=1))
    loaded.close()
    if kind == "events":
        engine: object = StepEngine(loaded.tokenizer.decode([TOKEN]), streams, after_step)
    else:
        total = 256 + tokens
        pages = streams * -(-total // PAGE_TOKENS) + 8
        capacity = ExecutorLimits(
            max_tokens=4096, max_rows=streams, page_count=pages, page_tokens=PAGE_TOKENS
        )
        vocabulary = loaded.tokenizer.vocabulary_size
        engine = Engine(
            NullExecutor(capacity, vocabulary, TOKEN, after_step),
            Sampler(vocabulary, _native.Pool(1)),
            loaded.tokenizer,
            EngineLimits(context_length=total, max_num_seqs=streams),
        )
    return replace(loaded, engine=engine)


def serve(asked: argparse.Namespace) -> None:
    """The server process: prints its port, and exits when its stdin closes."""
    os.sched_setaffinity(0, {asked.core})
    lockstep = Lockstep()
    free = asked.pace == "free"
    model = make_model(asked.serve, asked.streams, asked.tokens, (lambda: None) if free else lockstep)
    settings = load_settings({"port": 0, "store": asked.store}, environ={}, folders=[])
    listener = bind(settings)

    def started() -> None:
        lockstep.loop = asyncio.get_running_loop()
        print(listener.getsockname()[1], flush=True)

    server = Server(create_app(model, settings), settings, started)

    def end_with_input() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_input, daemon=True).start()
    server.run(sockets=[listener])
    model.close()


async def one_round(port: int, streams: int, tokens: int) -> tuple[float, list[Exchange]]:
    """Run every stream once; returns the seconds from the first token of any stream to the last."""
    body = {"messages": MESSAGES, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    request = post("/v1/chat/completions", body)
    exchanges = [await begin(port, request, keep_body=False) for _ in range(streams)]
    for exchange in exchanges:
        await finish(exchange)
        assert exchange.body.endswith(b"data: [DONE]\n\n"), exchange.body
    first = min(exchange.reads[0][0] for exchange in exchanges)
    return max(exchange.ended_s for exchange in exchanges) - first, exchanges


def measure(kind: str, pace: str, asked: argparse.Namespace) -> list[tuple[float, float, float]]:
    """Per round: tokens per second, tokens per CPU second of the server, tokens per write."""
    found: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", kind, "--pace", pace, "--streams", str(asked.streams)]
        command += ["--tokens", str(asked.tokens), "--store", str(Path(folder) / "store.sqlite3")]
        command += ["--core", str(asked.core)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin and child.stdout
            port = int(child.stdout.readline())
            process = psutil.Process(child.pid)
            for number in range(asked.rounds + 1):
                before = process.cpu_times()
                wall_s, exchanges = asyncio.run(one_round(port, asked.streams, asked.tokens))
                after = process.cpu_times()
                total = asked.streams * asked.tokens
                busy_s = after.user + after.system - before.user - before.system
                writes = sum(exchange.writes for exchange in exchanges)
                if number:  # the first round is a warm-up
                    found.append((total / wall_s, total / busy_s, total / writes))
            child.stdin.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=0, help="the server's")
    parser.add_argument("--serve", choices=("events", "engine"), help=argparse.SUPPRESS)
    parser.add_argument("--pace", choices=("step", "free"), default="step", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked)
        return
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {asked.core})
    print(f"{asked.streams} streams of {asked.tokens} tokens, {asked.rounds} rounds, {time.strftime('%F')}")
    print("| engine | steps | tokens/s, median (min-max) | per core and second | tokens per write |")
    print("|---|---|---|---|---|")
    for kind in ("events", "engine"):
        for pace, name in (("step", "step by step"), ("free", "free")):
            rates, per_core, per_write = zip(*measure(kind, pace, asked), strict=True)
            median = statistics.median(rates)
            print(
                f"| {kind} | {name} | {median:,.0f} ({min(rates):,.0f}-{max(rates):,.0f}) | "
                f"{statistics.median(per_core):,.0f} | {statistics.median(per_write):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
