"""Starts a worker process. Imports very little, so that a server can start workers first."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

from msgspec import Struct

SECRETS = re.compile(
    r"(^|_)(API_?KEYS?|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|ACCESS_KEY|PRIVATE_KEY)(_|$)", re.IGNORECASE
)
"""Names of variables that a worker does not get: it computes, and calls nobody."""


class Spawned(Struct, frozen=True):
    """A process that is starting, and the server's end of its socket."""

    process: subprocess.Popen[bytes]
    end: socket.socket


def spawn() -> Spawned:
    """Start a worker. It inherits only its end of the socket, stderr, and variables that are no secrets. It
    exits when the socket closes; SIGINT, which a terminal sends to all, is blocked in it from the start."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        # -P: import nothing from the current directory of the server.
        command = [sys.executable, "-P", "-m", "headrace.workers", str(number)]
        environment = {name: value for name, value in os.environ.items() if not SECRETS.search(name)}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits the mask
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number], env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Spawned(process, ours)
