"""Starts worker processes. Imports very little, so that a server can start workers first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct

from headrace.isolation.secret_variables import without_secrets
from headrace.workers.forked import FORK, ForkedProcess, StartedProcess

_hidden = {"HEADRACE_LEDGER"}  # as the environment itself, of this process


TURNS_FILE_BYTES = 2**16
"""Room for an arena of turns (native/turns/turns.hpp), all zeros: the first worker initializes it."""


GRACE_S = 5.0  # for the last workers to end


class Spawned(Struct, frozen=True):
    """A process that is starting, the server's end of its socket, and what starts more like it."""

    process: StartedProcess
    end: socket.socket
    spawner: Spawner


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


class Spawner:
    """Starts the workers of a server, which take turns over the file `turns`. Safe to share between threads.

    With `forks`, where the system can (Linux), workers are forks of one process that has imported what they
    need: the next one begins after milliseconds, and not after half a second of processor time beside others.
    """

    def __init__(self, turns: int | None = None, *, forks: bool = True) -> None:
        self.turns = turns
        self._forks = forks and _can_fork()
        self._lock = threading.Lock()
        self._parent: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._variables: frozenset[str] = frozenset()  # of the parent
        self._left: list[subprocess.Popen[bytes]] = []  # parents that end with their last worker

    def spawn(self) -> Spawned:
        """Start a worker. It inherits only its end of the socket, stderr, the file of turns, and variables
        that are no secrets. It exits when the socket closes; SIGINT, which a terminal sends to all, is
        blocked in it from the start."""
        ours, theirs = socket.socketpair()
        with theirs:
            shared = [] if self.turns is None else [self.turns]
            numbers = [theirs.fileno(), *shared]
            process = (
                self._fork(numbers) if self._forks else _started("headrace.workers", numbers, _environment())
            )
        return Spawned(process, ours, self)

    def close(self) -> None:
        """Start no more, and end the parent of those that were started: by itself with its last worker."""
        with self._lock:
            self._leave_parent()
            left, self._left = self._left, []
        for parent in left:
            try:
                parent.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                parent.kill()
                parent.wait()

    def _fork(self, numbers: Sequence[int]) -> ForkedProcess:
        told, tells = socket.socketpair()
        with tells, self._lock:
            parent, control = self._running_parent()
            try:
                socket.send_fds(control, [FORK], [tells.fileno(), *numbers])
            except OSError:  # it was killed just now: once more
                self._leave_parent()
                parent, control = self._running_parent()
                socket.send_fds(control, [FORK], [tells.fileno(), *numbers])
        return ForkedProcess(parent, told)

    def _running_parent(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """With the lock held. A parent that has variables which are hidden by now is left."""
        self._left = [parent for parent in self._left if parent.poll() is None]
        hidden = not _hidden.isdisjoint(self._variables)
        if self._parent is not None and (hidden or self._parent[0].poll() is not None):
            self._leave_parent()
        if self._parent is None:
            ours, theirs = socket.socketpair()
            environment = _environment()
            with theirs:
                process = _started("headrace.workers.fork_parent", [theirs.fileno()], environment)
            self._parent, self._variables = (process, ours), frozenset(environment)
        return self._parent

    def _leave_parent(self) -> None:
        if self._parent is not None:
            parent, control = self._parent
            control.close()
            self._left.append(parent)
            self._parent = None


@cache
def _can_fork() -> bool:
    """Whether a process can be told by a file, so that a signal never goes to another that got its number."""
    with suppress(AttributeError, OSError):  # older systems, and containers that forbid it
        number = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(number, 0)
        finally:
            os.close(number)
        return True
    return False


def open_variables() -> dict[str, str]:
    """The variables of the environment that are no secrets."""
    return {name: value for name, value in without_secrets(os.environ).items() if name not in _hidden}


def _environment() -> dict[str, str]:
    # A pool of threads of NumPy's BLAS would be in no fork, and competes with the engine's.
    return {"OPENBLAS_NUM_THREADS": "1"} | open_variables()


def _started(module: str, inherited: Sequence[int], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # -P: import nothing from the current directory of the server.
    command = [sys.executable, "-P", "-m", module, *map(str, inherited)]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits the mask
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=inherited,
            env=environment,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
