"""Starts a worker process. Imports very little, so that a server can start workers first."""

from __future__ import annotations

import socket
import subprocess
import sys

from msgspec import Struct


class Spawned(Struct, frozen=True):
    """A process that is starting, and the server's end of its socket."""

    process: subprocess.Popen[bytes]
    end: socket.socket


def spawn() -> Spawned:
    """Start a worker. It inherits only its end of the socket and stderr, and exits when the socket closes."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        # -P: import nothing from the current directory of the server.
        command = [sys.executable, "-P", "-m", "headrace.workers", str(number)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number])
    return Spawned(process, ours)
