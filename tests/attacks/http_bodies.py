"""Bodies that are announced, slow, large, compressed or ambiguous, without a key and with one."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress

from target import BODY, CHAT, MIB, Attack, Target, request

LARGE = 31 * MIB


def _declared(key: str):
    def run(target: Target) -> str:
        for _ in range(40):
            target.connect().sendall(request(CHAT, method=b"POST", key=key, length=32 * MIB))
        target.wait()
        return "40 × 32 MiB announced, none sent"

    return run


def _trickled(target: Target) -> str:
    head = request(CHAT, method=b"POST", key="attacker", length=LARGE)
    sent = sum(target.at_once(8, lambda: target.flood(head, b" ", paced_s=0.05)))
    return f"8 bodies, {sent} bytes sent"


def _held(target: Target) -> str:
    """Send most of a large body and then nothing."""
    head = request(CHAT, method=b"POST", key="attacker", length=LARGE + 1)
    sent = sum(target.at_once(8, lambda: target.flood(head, b" " * MIB, LARGE)))
    return f"{sent / MIB:.0f} MiB sent and left"


def _without_key(target: Target) -> str:
    head = request(CHAT, method=b"POST", headers=b"", length=LARGE)
    sent = sum(target.at_once(4, lambda: target.flood(head, b" " * 65536, LARGE)))
    assert sent < 4 * 16 * MIB, f"{sent:,} bytes were taken"
    return f"cut after {sent / 4 / MIB:.1f} MiB each"


def _compressed(target: Target) -> str:
    headers = b"connection: close\r\ncontent-encoding: gzip\r\n"
    status = target.status(
        request(CHAT, method=b"POST", key="attacker", headers=headers, body=b"\x1f\x8b" * 999)
    )
    assert status == 415, status
    return "415"


def _duplicates(target: Target) -> str:
    """Small and large bodies with a key twice, the second kind beside as many integers as fit."""
    numbers = json.dumps([list(range(1000, 3000))] * 300).encode()
    small = BODY[:-1] + b',"max_tokens":5}'
    large = BODY[:-1] + b',"x":' + numbers + b',"x":"\\u003a"}'
    seen = Counter[int]()
    until_s = time.monotonic() + target.attack_s
    while time.monotonic() < until_s:
        for body in (small, large):
            seen[target.status(request(CHAT, method=b"POST", key="attacker", body=body))] += 1
    assert set(seen) == {400}, seen
    return f"{seen[400]} × 400"


def _early(target: Target) -> str:
    """Whole bodies for paths that read none."""
    seen = Counter[int]()
    until_s = time.monotonic() + target.attack_s
    while time.monotonic() < until_s:
        with suppress(OSError):
            seen[target.status(request(b"/health", method=b"POST", key="attacker", body=b" " * MIB * 4))] += 1
    return ", ".join(f"{count} × {status or 'cut'}" for status, count in seen.items())


ATTACKS = [
    Attack("announced bodies with a key", _declared("attacker")),
    Attack("announced bodies without a key", _declared("")),
    Attack("bodies that trickle", _trickled),
    Attack("large bodies held half-sent", _held, memory_mib=320),
    Attack("uploads without a key", _without_key),
    Attack("compressed bodies", _compressed),
    Attack("JSON keys twice", _duplicates, memory_mib=96),
    Attack("bodies where none is read", _early),
]
