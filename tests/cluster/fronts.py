"""Servers behind one address, as processes of their own, that share a PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai

ADMIN = "configured-admin"


@dataclass
class Front:
    """One of them. Killed at the end."""

    url: str
    process: subprocess.Popen[bytes]
    clients: ExitStack

    def openai(self, key: str = ADMIN, **options: object) -> openai.OpenAI:
        client = self.clients.enter_context(httpx.Client(trust_env=False, timeout=60))
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, http_client=client)

    def http(self, key: str = ADMIN) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        client = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60)
        return self.clients.enter_context(client)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def environment(ledger: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**kept, "HEADRACE_LEDGER": ledger, "HEADRACE_ADMIN_API_KEY": ADMIN}


@contextmanager
def front(folder: Path, ledger: str, *flags: str) -> Iterator[Front]:
    """A server with a store of its own in `folder`."""
    folder.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "headrace",
        "cluster",
        "serve",
        "nano",
        "--replicas",
        "1",
        "--fronts",
        "2",
    ]
    command += ["--port", "0", "--max-num-seqs", "4", "--threads", "1", *flags]
    command += ["--store", str(folder / "store.sqlite3")]
    with (
        ExitStack() as clients,
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(ledger), cwd=folder) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(rb"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            yield Front(found[0].decode(), process, clients)
        finally:
            process.kill()
