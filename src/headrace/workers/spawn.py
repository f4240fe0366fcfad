"""Starts a worker process. Imports very little, so that a server can start workers first."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable

from msgspec import Struct

SECRETS = re.compile(r"(^|_)((API)?KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
"""Names of variables that a worker does not get: it computes, and calls nobody."""
_hidden = {"HEADRACE_LEDGER"}  # as the environment itself, of this process


TURNS_FILE_BYTES = 2**16
"""Room for an arena of turns (native/turns/turns.hpp), all zeros: the first worker initializes it."""


class Spawned(Struct, frozen=True):
    """A process that is starting, the server's end of its socket, and the file of its turns."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    turns: int | None = None


def turns_file() -> int | None:
    """A file in memory through which the workers of a server take turns; None where the system has none.
    It lives as long as the process that makes it, and its workers."""
    if not hasattr(os, "memfd_create"):
        return None
    number = os.memfd_create("headrace-turns")
    os.write(number, bytes(TURNS_FILE_BYTES))  # its memory exists before anybody maps it
    return number


def hide(variables: Iterable[str]) -> None:
    """Workers that are started from now on do not get these variables of the environment either."""
    _hidden.update(variables)


def spawn(turns: int | None = None) -> Spawned:
    """Start a worker. It inherits only its end of the socket, stderr, the file of `turns`, and variables that
    are no secrets. It exits when the socket closes; SIGINT, which a terminal sends to all, is blocked in it
    from the start."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        # -P: import nothing from the current directory of the server.
        inherited = [number] if turns is None else [number, turns]
        command = [sys.executable, "-P", "-m", "headrace.workers", *map(str, inherited)]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not SECRETS.search(name) and name not in _hidden
        }
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits the mask
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=inherited, env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Spawned(process, ours, turns)
