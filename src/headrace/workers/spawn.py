"""Starts the program of a worker process; imports next to nothing, so that a server can begin with it."""

from __future__ import annotations

import socket
import subprocess
import sys

from msgspec import Struct


class Spawned(Struct, frozen=True):
    """A process that is starting, and this side's end of its pipe."""

    process: subprocess.Popen[bytes]
    end: socket.socket


def spawn() -> Spawned:
    """Start a worker. It inherits nothing but its end of the pipe and stderr, and ends with the pipe."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        # -P: nothing is imported from the folder that the server happens to run in.
        command = [sys.executable, "-P", "-m", "headrace.workers", str(number)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number])
    return Spawned(process, ours)
