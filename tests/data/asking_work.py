"""A process whose work asks questions: run as `python -m asking_work` by a test."""

from __future__ import annotations

import os
import socket
import threading

from headrace.isolation.fork_server import QUESTION, SIZE, Ask, Work, serve


def prepare(setup: bytes) -> Work:
    """Work by its first word."""
    return work


def work(payload: bytes, ask: Ask) -> bytes:
    """Ask as told."""
    kind, _, rest = payload.partition(b" ")
    if kind == b"many":
        return b"".join(ask(b"%d" % number) for number in range(int(rest)))
    if kind == b"threads":
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda n=number: found.append(ask(b"%d" % n)))
            for number in range(int(rest))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return b",".join(sorted(found))
    if kind == b"large":
        for descriptor in range(3, 64):  # a size that is none, on whatever connection there is
            try:
                socket.socket(fileno=os.dup(descriptor)).send(SIZE.pack(QUESTION | 1 << 40))
            except OSError:
                continue
    return ask(rest)


if __name__ == "__main__":
    serve(prepare)
