"""headrace replay: kept requests are computed again, in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
