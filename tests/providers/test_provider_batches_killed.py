"""`kill -9` of a server whose lines wait for a provider's batch: each is sent and booked once."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_batches import FakeBatches, completion, message
from fake_provider import Exchange, running_provider

from headrace.economy.budgets import Budgets
from headrace.economy.ledger import Ledger
from headrace.storage.database import Database

CHAT = "/v1/chat/completions"
LINES = 12
LINE_NANO_USD = 5 * 1000 + 3 * 5000
SETTINGS = """
[providers.work]
kind = "{kind}"
base_url = "{url}"
api_key_env = "TEST_BATCH_KEY"
[models.far]
provider = "work"
model = "far-1"
batches = "provider"
[[prices."work/far-1"]]
input = 2
output = 10
[[prices."work/far-1"]]
input = 1
output = 5
processing = "batch"
[budgets.all]
usd_per_month = 1000
"""


class DeadlyBatches(FakeBatches):
    """A provider in whose requests the server that asks is killed: at `moment`, before or after it takes
    place, or in the middle of the reply."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__(answer)
        self.moment, self.when = "", ""
        self.kill: Callable[[], None] = lambda: None
        self.struck = threading.Event()

    async def __call__(self, exchange: Exchange) -> None:
        is_it = bool(self.moment) and self._names(exchange) == self.moment
        if is_it and self.when == "before":
            self._strike()
            return
        if is_it and self.when == "half":
            content = self._found(exchange, exchange.path.removeprefix("/v1"))
            assert isinstance(content, bytes)
            await exchange.begin(200, content_type="application/octet-stream")
            await exchange.send(content[: len(content) // 2])
            time.sleep(0.1)  # half of the lines are kept
            self._strike()
            return
        if is_it:  # it takes place, and no reply comes
            self._found(exchange, exchange.path.partition("?")[0].removeprefix("/v1"))
            self._strike()
            return
        await super().__call__(exchange)

    def _strike(self) -> None:
        self.moment = ""
        self.kill()
        self.struck.set()

    @staticmethod
    def _names(exchange: Exchange) -> str:
        path = exchange.path.partition("?")[0].removeprefix("/v1").removeprefix("/messages")
        if exchange.method == "POST":
            return {"/files": "upload", "/batches": "create"}.get(path, "")
        if path.endswith(("/content", "/results")):
            return "results"
        return "state" if path.count("/") > 1 else ""


class Killed:
    """`headrace serve` over one store, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store.sqlite3"
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        command = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--threads", "1"]
        command += ["--store", str(self.store)]
        environment = {**kept, "TEST_BATCH_KEY": "sk-one"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=self.folder)

    def ready(self) -> None:
        """Wait until it takes requests; it goes on with its batches before that."""
        assert self.process is not None and self.process.stdout is not None
        found = re.search(rb"http://127\.0\.0\.1:\d+", self.process.stdout.readline())
        assert found
        self.url = found[0].decode()

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)

    def gone(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.wait(60)
        self.process.stdout.close()

    def count(self, sql: str) -> int:
        """From the store as the process of the server leaves it."""
        with sqlite3.connect(self.store, timeout=30) as connection:
            return int(connection.execute(sql).fetchone()[0])


def begun(server: Killed) -> str:
    lines = [
        {
            "custom_id": str(n),
            "method": "POST",
            "url": CHAT,
            "body": {"model": "far", "messages": [{"role": "user", "content": f"line {n}"}], "max_tokens": 9},
        }
        for n in range(LINES)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        sent = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
        body = {"input_file_id": sent.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
        return str(client.post("/v1/batches", json=body).json()["id"])


def wait_for(met: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + 240
    while not (found := met()):
        assert time.monotonic() < until_s
        time.sleep(0.005)
    return found


def texts(server: Killed, batch: str) -> dict[str, str]:
    """The answer of each line of a batch that has completed."""
    server.ready()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        path = f"/v1/batches/{batch}"
        wait_for(lambda: client.get(path).json()["status"] in ("completed", "failed", "expired"))
        found = client.get(path).json()
        assert found["status"] == "completed" and found["request_counts"]["completed"] == LINES, found
        rows = client.get(f"/v1/files/{found['output_file_id']}/content").text.splitlines()
    assert len(rows) == LINES
    replies = [json.loads(row) for row in rows]
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in replies}


Serve = Callable[[str], tuple[Killed, DeadlyBatches]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def made(kind: str) -> tuple[Killed, DeadlyBatches]:
            provider = DeadlyBatches(message if kind == "anthropic" else completion)
            url = stack.enter_context(running_provider(provider)).url
            (tmp_path / "headrace.toml").write_text(SETTINGS.format(kind=kind, url=url))
            server = Killed(tmp_path)
            provider.kill = server.kill
            stack.callback(lambda: server.process and server.gone())
            stack.callback(server.kill)
            return server, provider

        yield made


def judge(server: Killed, provider: DeadlyBatches, batch: str) -> None:
    """What holds at the end, whenever the server was killed."""
    assert texts(server, batch) == {str(n): f"far: line {n}" for n in range(LINES)}
    assert len(provider.batches) == 1 and len(provider.bodies) == LINES and not provider.single
    server.kill()
    server.gone()
    database = Database(server.store)
    Budgets(database, ()).release_stale()  # of attempts that the kills ended
    entries = [entry for _, entry in Ledger(database).entries()]
    booked = [(one.nano_usd, one.status, one.processing) for one in entries if one.kind == "attempt"]
    assert booked == [(LINE_NANO_USD, "measured", "batch")] * LINES
    assert sum(one.nano_usd for one in entries) == provider.billed * LINE_NANO_USD
    assert not database.query("SELECT * FROM holds"), "money is held for nothing"
    spent = database.query("SELECT sum(nano_usd) FROM budget_totals WHERE budget = 'all'")
    assert spent == [(LINES * LINE_NANO_USD,)]
    database.close()


STEPS = [("create", "after"), ("results", "half")]
ALL_STEPS = [("upload", "after"), ("create", "before"), STEPS[0], ("state", "after"), STEPS[1]]


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("openai", STEPS),
        pytest.param("openai", ALL_STEPS, marks=pytest.mark.soak),
        pytest.param("anthropic", ALL_STEPS[1:], marks=pytest.mark.soak),
    ],
    ids=["openai", "openai-each", "anthropic-each"],
)
def test_killed_in_each_step_of_a_batch_at_a_provider(
    serve: Serve, kind: str, steps: list[tuple[str, str]]
) -> None:
    server, provider = serve(kind)
    server.start()
    server.ready()
    batch = begun(server)
    wait_for(lambda: server.count("SELECT count(*) FROM provider_lines") >= 3)
    server.kill()  # some lines wait, others have not been looked at
    server.gone()
    for moment, when in steps:
        provider.struck.clear()
        provider.moment, provider.when = moment, when
        server.start()
        wait_for(provider.struck.is_set)
        server.gone()
    server.start()
    wait_for(lambda: server.count("SELECT count(*) FROM ledger_entries WHERE kind = 'attempt'") >= 3)
    server.kill()  # some lines are booked
    server.gone()
    server.start()
    judge(server, provider, batch)
