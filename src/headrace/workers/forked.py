"""A worker that another process forked, as seen by the server: its number, how it ended, its end."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from typing import Protocol

FORK = b"f"
"""A request to the parent of forks, with the files of a socket that tells of the fork, and of the worker."""
NUMBER = struct.Struct("<i")
"""What that socket tells: the process id, with a file for it, and at the end how it ended (os.waitpid)."""
LOOK_S = 1.0
"""How often a waiting thread looks whether another one has heard the end."""


class StartedProcess(Protocol):
    """A child process, as `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative: a signal. Raises subprocess.TimeoutExpired."""
        ...

    def kill(self) -> None:
        """End it."""
        ...


class ForkedProcess:
    """Safe to share between threads. Where the parent has ended before, so that nobody can know how this
    process ends, its exit code is the parent's."""

    def __init__(self, parent: subprocess.Popen[bytes], told: socket.socket) -> None:
        self._parent, self._told = parent, told
        self._lock = threading.Lock()  # guards the fields below
        self._begun: tuple[int, int] | None = None  # process id, and a file for it
        self._orphaned = False
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The process id, as soon as it has begun; 0 where it never does."""
        with self._lock:
            return self._known()[0]

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative: a signal. Raises subprocess.TimeoutExpired."""
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._code is None and _readable(self._watched, 0):
                    self._take()
                if self._code is not None:
                    return self._code
                number = self._watched
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            _readable(number, min(left_s, LOOK_S))

    def kill(self) -> None:
        """End it."""
        with self._lock:
            _, file = self._known()
            if self._code is None:
                with suppress(ProcessLookupError):  # it has ended, which is not told yet
                    signal.pidfd_send_signal(file, signal.SIGKILL)

    def _known(self) -> tuple[int, int]:
        """With the lock held: the process id and its file, for which it waits."""
        while self._begun is None and self._code is None:
            self._take()
        return self._begun or (0, -1)

    @property
    def _watched(self) -> int:
        """With the lock held: what can be read when there is something to take."""
        return self._begun[1] if self._orphaned and self._begun is not None else self._told.fileno()

    def _take(self) -> None:
        """With the lock held: the next thing that is told."""
        if self._orphaned:
            self._end(self._parent.wait())
            return
        said, files, _, _ = socket.recv_fds(self._told, NUMBER.size, 1)
        if len(said) < NUMBER.size:  # the parent has ended
            self._orphaned = True
            if self._begun is None:
                self._end(self._parent.wait())
        elif files:
            self._begun = NUMBER.unpack(said)[0], files[0]
        else:
            self._end(os.waitstatus_to_exitcode(NUMBER.unpack(said)[0]))

    def _end(self, code: int) -> None:
        self._code = code
        self._told.close()
        if self._begun is not None:
            os.close(self._begun[1])


def _readable(number: int, timeout_s: float) -> bool:
    """Whether something can be read, or the other side is closed, or a process has ended."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))
