"""headrace replay: kept requests are computed again, in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.replay_run import _report_all
from journal.killed_server import KilledServer
from journal.requests_of_every_kind import CHAT, STORY


def replayed(server: KilledServer, *words: str, code: int = 0) -> Any:
    command = [sys.executable, "-m", "headrace", "replay", *words, "--journal", str(server.journal), "--json"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    assert found.returncode == code, found.stdout
    return json.loads(found.stdout) if found.stdout else None


def test_a_reply_is_computed_again(tmp_path: Path) -> None:
    server = KilledServer(tmp_path)
    server.start()
    try:
        chat = {"model": "mini", "messages": STORY, "max_tokens": 200, "ignore_eos": True}
        for request_id, more in (("whole", {}), ("stream", {"stream": True, "n": 2})):
            server.ask("POST", CHAT, {**chat, **more}, {"x-request-id": request_id}).read()
        message = {"model": "mini", "messages": STORY, "max_tokens": 20, "stream": True}
        server.ask("POST", "/v1/messages", message).read()
        assert replayed(server, "stream")["outcome"] == "same"  # while the server runs
    finally:
        server.kill(15)
    every = replayed(server, "--all", "--since", "1d")
    assert (every["equal"], every["different"], every["failed"]) == (3, 0, 0)
    other = replayed(server, "whole", "--with", "weights=int4")
    assert other["outcome"] == "different" and other["difference"]
    assert any("weights are others" in reason for reason in other["reasons"])
    assert other["recorded"]["text"] and other["replayed"]["text"]
    replayed(server, "nobody", code=2)


def test_what_is_slower_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def one(name: str, then_s: float, now_s: float) -> dict[str, Any]:
        sides = {"recorded": {"seconds": then_s}, "replayed": {"seconds": now_s}}
        return {"id": name, "outcome": "same", "reasons": [], **sides}

    skipped = {"id": "far", "outcome": "skipped", "reasons": ["of a provider"], "replayed": None}
    results = [one("short", 0.001, 0.09), one("equal", 2.0, 2.4), one("slow", 1.0, 1.5), skipped]
    assert _report_all(results, None, json=False) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "slower: slow: 1.50 s, it took 1.00 s"
    assert said[2] == "3 equal, 0 different, 0 failed, 1 skipped, 1 slower"
