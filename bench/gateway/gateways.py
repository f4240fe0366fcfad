"""Gateways as processes on one core: Headrace, LiteLLM's proxy, Portkey's gateway."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

GATEWAY_CORE, CLIENT_CORE = 1, 0
START_S = 60.0
ENVIRONMENT = {
    "TRUSTED_CUSTOM_HOSTS": "127.0.0.1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
"""So that they start without keys, call loopback, and fetch nothing."""
SHAPES = ("1-0", "1-5", "200-5", "20-200", "40-25")
"""Models that the upstream is asked for: chunks and milliseconds between them."""


@dataclass(frozen=True)
class Running:
    """A gateway that answers."""

    process: psutil.Process
    port: int
    path: str
    headers: dict[str, str]
    model: str
    begun_s: float

    def cpu_s(self) -> float:
        """CPU time of all its processes."""
        return sum(sum(one.cpu_times()[:2]) for one in self._all())

    def rss_mib(self) -> float:
        """Memory of all its processes."""
        return sum(one.memory_info().rss for one in self._all()) / 2**20

    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def headrace(upstream_port: int, folder: Path) -> Generator[Running]:
    """This project's server, with one remote model per shape; the ledger books every request."""
    models = "".join(f'[models."{one}"]\nprovider = "up"\n' for one in SHAPES)
    base = f"http://127.0.0.1:{upstream_port}/v1"
    (folder / "headrace.toml").write_text(
        f'[providers.up]\ndialect = "openai_chat"\nbase_url = "{base}"\nmax_connections = 2000\n'
        f'[prices."up/*"]\ninput = 1\noutput = 2\n{models}'
    )
    port = free_port()
    store = str(folder / "store.sqlite3")
    command = [sys.executable, "-m", "headrace", "serve", "--port", str(port), "--store", store]
    with _running(command, folder, port, "/v1/chat/completions", {}, "{}") as one:
        yield one


@contextlib.contextmanager
def litellm(upstream_port: int, folder: Path, program: str) -> Generator[Running]:
    """LiteLLM's proxy with one worker and no database."""
    entries = "".join(
        f"  - model_name: '{one}'\n    litellm_params:\n      model: 'openai/{one}'\n"
        f"      api_base: 'http://127.0.0.1:{upstream_port}/v1'\n      api_key: 'none'\n"
        for one in SHAPES
    )
    (folder / "config.yaml").write_text(f"model_list:\n{entries}litellm_settings:\n  telemetry: false\n")
    port = free_port()
    command = [program, "--config", "config.yaml", "--port", str(port), "--host", "127.0.0.1"]
    with _running(
        command, folder, port, "/v1/chat/completions", {"authorization": "Bearer none"}, "{}"
    ) as one:
        yield one


@contextlib.contextmanager
def portkey(upstream_port: int, folder: Path, program: str) -> Generator[Running]:
    """Portkey's gateway (Node.js), which is told the upstream by headers."""
    port = free_port()
    headers = {
        "authorization": "Bearer none",
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
    }
    command = ["node", program, f"--port={port}", "--headless"]
    with _running(command, folder, port, "/v1/chat/completions", headers, "{}") as one:
        yield one


@contextlib.contextmanager
def _running(
    command: Sequence[str], folder: Path, port: int, path: str, headers: dict[str, str], model: str
) -> Generator[Running]:
    environment = os.environ | ENVIRONMENT
    start_s = time.perf_counter()
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            ["taskset", "-c", str(GATEWAY_CORE), *command],
            cwd=folder,
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        while not _listens(port):
            if child.poll() is not None or time.perf_counter() - start_s > START_S:
                raise RuntimeError(f"{command[0]} did not start: {(folder / 'log').read_text()[-1000:]}")
            time.sleep(0.01)
        yield Running(psutil.Process(child.pid), port, path, headers, model, start_s)
    finally:
        for one in psutil.Process(child.pid).children(recursive=True) if child.poll() is None else ():
            one.terminate()
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(0.2)
        return one.connect_ex(("127.0.0.1", port)) == 0
