"""A power cut: what was not synced is gone, and with `fsync = "power"` no client has seen any of it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from journal.clients import Client, Undisturbed, learned, said_by, without_clock
from journal.faults import Disk, library
from journal.killed_server import KilledServer
from journal.requests_of_every_kind import CHAT, STORY

KINDS = ("warm", "tools", "three", "background", "ollama", "beam")


def begun(folder: Path, fsync: str) -> tuple[KilledServer, Disk]:
    """A server with its journal and its store on a disk that forgets."""
    shim = library(folder)
    if shim is None:
        pytest.skip("there is no C compiler")
    (folder / "disk").mkdir()
    disk = Disk(folder / "disk", folder / "durable", shim)
    journal = json.dumps({"folder": str(disk.folder / "journal"), "fsync": fsync})
    server = KilledServer(disk.folder, journal=journal, environment=disk.environment)
    server.start()
    server.ask("POST", "/v1/responses", {"model": "mini", "input": "Hi", "max_output_tokens": 1}).read()
    disk.settle()  # all of that was long ago
    return server, disk


def test_nothing_that_a_client_has_seen_is_lost(tmp_path: Path) -> None:
    server, disk = begun(tmp_path, "power")
    draw, lost = random.Random(8), 0
    try:
        clients = [Client(server, f"r{place}", kind, 1) for place, kind in enumerate(KINDS)]
        for _ in range(2):
            time.sleep(draw.uniform(0.2, 0.6))
            server.kill()
            lost += disk.cut_power(draw)
            server.start()
        for one in clients:
            one.join()
        expected: Undisturbed = learned(server, {(kind, 1) for kind in KINDS})
        for one in clients:
            assert said_by(one) == expected[one.kind, 1], one.kind
            kept = server.ask("GET", f"/v1/requests/{one.name}/stream").read()
            assert without_clock(kept) == without_clock(one.seen), one.kind
        assert server.json("GET", "/health")["journal"]["state"] in ("ok", "damaged")
    finally:
        server.kill()


def test_without_that_a_good_prefix_is_left(tmp_path: Path) -> None:
    """The default promises nothing there; what is left is used, and the server takes requests."""
    server, disk = begun(tmp_path, "crash")
    draw = random.Random(9)
    body = {"model": "mini", "messages": STORY, "max_tokens": 8, "seed": 3}
    try:
        before = server.json("POST", CHAT, body)
        clients = [Client(server, f"r{place}", "warm", 1) for place in range(2)]
        while not all(one.seen for one in clients):
            time.sleep(0.01)
        server.kill()
        assert disk.cut_power(draw) > 0
        server.start()
        assert server.json("POST", CHAT, body)["choices"] == before["choices"]
        for one in clients:  # each goes on, or is told that there is no such request
            one.thread.join(60)
            assert one.is_whole or one.problem.startswith("404"), one.problem
    finally:
        server.kill()
