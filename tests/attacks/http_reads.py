"""Reads without end, and replies that are never read."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress

from target import BODY, CHAT, Attack, Target, request

BATCH = 25


def _flood(path: bytes):
    def run(target: Target) -> str:
        seen = Counter[bytes]()
        data = request(path, key="attacker", headers=b"") * (BATCH - 1) + request(path, key="attacker")

        def work() -> int:
            until_s = time.monotonic() + target.attack_s
            while time.monotonic() < until_s:
                for part in target.ask(data).split(b"HTTP/1.1 ")[1:]:
                    seen[part[:3]] += 1
            return 0

        target.at_once(4, work)
        assert set(seen) <= {b"200", b"429"}, seen
        return ", ".join(f"{count} × {status.decode()}" for status, count in sorted(seen.items()))

    return run


def _unread(target: Target) -> str:
    data = request(b"/openapi.json", key="attacker", headers=b"") * 20
    for _ in range(40):
        connection = target.connect(receive_buffer=4096)
        with suppress(OSError):
            connection.sendall(data)
    target.wait()
    return "40 × 20 replies unread"


def _unread_streams(target: Target) -> str:
    body = BODY.replace(b'"max_tokens": 4', b'"max_tokens": 400, "stream": true, "ignore_eos": true')
    for _ in range(20):
        connection = target.connect(receive_buffer=4096)
        connection.sendall(request(CHAT, method=b"POST", key="attacker", body=body))
    target.wait()
    return "20 streams unread"


ATTACKS = [
    Attack("reads of /v1/models without end", _flood(b"/v1/models")),
    Attack("reads of /metrics without end", _flood(b"/metrics")),
    Attack("reads of /openapi.json without end", _flood(b"/openapi.json")),
    Attack("replies that are not read", _unread),
    Attack("streams that are not read", _unread_streams, memory_mib=64),
]
