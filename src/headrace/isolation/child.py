"""The other side of a fork server: starts it, gives it work, tells why work failed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from headrace.isolation.fork_server import CALL, OUT_OF_MEMORY, QUESTION, SETUP, SIZE, STATUS
from headrace.isolation.limits import ProcessLimits

WAIT_S = 60.0
"""For one piece of work on a machine that is busy or was suspended: its time is counted in CPU seconds."""
MAX_QUESTION = 1 << 26
"""Bytes of a question of the work."""
Answer = Callable[[bytes], bytes]
"""Answers a question that the work has. What it raises ends the work."""
KEPT_VARIABLES = frozenset(
    {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"}
    | {"DYLD_LIBRARY_PATH", "LD_PRELOAD"}
)
"""Of the environment: what starts Python, and nothing that may be secret."""


class LimitExceeded(Exception):
    """The work took more time or memory than it may have; `what` says which, as far as that is known."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class WorkFailed(Exception):
    """The work ended otherwise than by its limits, without a result."""


class WorkLost(WorkFailed):
    """The process of the work was ended from outside, by the kernel for want of memory for instance, or has
    not answered for WAIT_S: that says nothing about the work, and another try may succeed."""


class WorkStop:
    """Ends a piece of work from another thread, before or while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._action: Callable[[], object] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End it: its call raises WorkLost."""
        with self._lock:
            self._stopped, action = True, self._action
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
        if action is not None:
            action()

    @contextmanager
    def calling(self, action: Callable[[], object]) -> Generator[None]:
        """Within the block, which answers a question of the work, `stop` calls `action`, too."""
        with self._lock:
            self._action, stopped = action, self._stopped
        if stopped:
            action()
        try:
            yield
        finally:
            with self._lock:
                self._action = None

    @contextmanager
    def holding(self, connection: socket.socket) -> Generator[None]:
        """While the work runs over `connection`."""
        with self._lock:
            if self._stopped:
                raise WorkLost("it was stopped before it began")
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None


class IsolatedProcess:
    """Runs `python -m module`, which calls `fork_server.serve`. Safe to share between threads.

    The process starts with the first call, clean: no threads, no variables that may be secret. It ends with
    `close` or with this process.
    """

    def __init__(self, module: str, setup: Callable[[], bytes] = bytes) -> None:
        """`setup` makes what the module's `prepare` gets."""
        self._setup = setup
        self._lock = threading.Lock()
        self._child = _Child(module)
        weakref.finalize(self, self._child.stop)

    def call(
        self,
        payload: bytes,
        limits: ProcessLimits,
        *,
        niceness: int = 0,
        wait_s: float = WAIT_S,
        stop: WorkStop | None = None,
        answer: Answer | None = None,
    ) -> bytes:
        """What the work makes of `payload`. Raises LimitExceeded, WorkFailed or WorkLost, this also where
        there is no output after `wait_s`, which ends the work, or `stop` has ended it. The time in which
        `answer` answers the work's questions does not count."""
        ours, theirs = socket.socketpair()
        with ours, (stop or WorkStop()).holding(ours):
            ours.settimeout(wait_s)
            with theirs:
                self._hand_over(theirs, CALL.pack(limits.cpu_s, limits.memory_bytes, niceness))
            received = _Received(ours, time.monotonic() + wait_s)
            received.send(payload)
            while (question := received.question()) is not None:
                if answer is None:
                    raise WorkFailed("it has a question, which this work may not have")
                began_s = time.monotonic()
                received.send(answer(question))
                received.until_s += time.monotonic() - began_s
        output = _output(received.data)
        if output is None:
            raise _failure(received.data, limits)
        return output

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._child.stop()

    def _hand_over(self, connection: socket.socket, header: bytes) -> None:
        with self._lock:
            for attempt in range(2):
                try:
                    control = self._child.started(self._setup)
                    socket.send_fds(control, [header], [connection.fileno()])
                    return
                except OSError:  # it was killed: once more
                    self._child.stop()
                    if attempt:
                        raise WorkLost("the process for it does not start") from None


class _Child:
    """The process and this end of its socket."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def started(self, setup: Callable[[], bytes]) -> socket.socket:
        """The socket; starts the process where it does not run. OSError where it ends at once."""
        if self._running is not None and self._running[0].poll() is None:
            return self._running[1]
        self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: import nothing from the current directory.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # an allocation that fails is reported there
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in os.environ.items() if name in KEPT_VARIABLES},
            )
        self._running = process, ours
        sent = setup()
        ours.sendall(SETUP.pack(len(sent)) + sent)
        return ours

    def stop(self) -> None:
        """End the process."""
        running, self._running = self._running, None
        if running is not None:
            process, control = running
            control.close()
            process.kill()
            process.wait()


class _Received:
    """What has come of the work. Where the connection ends, what came tells why."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self.until_s = until_s
        self.data = bytearray()

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self._connection.sendall(SIZE.pack(len(data)) + data)

    def question(self) -> bytes | None:
        """The next question; None where there is the output, or nothing more."""
        while True:
            if _output(self.data) is not None:
                return None
            size = _question_size(self.data)
            if size is not None and len(self.data) >= (end := SIZE.size + size):
                question = bytes(self.data[SIZE.size : end])
                del self.data[:end]
                return question
            if not self._read():
                return None

    def _read(self) -> bool:
        """More has come; otherwise the connection has ended, or it takes far too long."""
        try:
            self._connection.settimeout(max(0.001, self.until_s - time.monotonic()))
            part = self._connection.recv(1 << 20)
        except OSError:
            return False
        self.data += part
        return bool(part)


def _question_size(received: bytearray) -> int | None:
    """The bytes of the question that has begun to come."""
    if len(received) < SIZE.size or not (size := SIZE.unpack(received[: SIZE.size])[0]) & QUESTION:
        return None
    if (size := size ^ QUESTION) > MAX_QUESTION:
        raise WorkFailed(f"it has a question of {size:,} bytes")
    return size


def _output(received: bytearray) -> bytes | None:
    """The output, if all of it has come."""
    start = SIZE.size
    if len(received) <= STATUS.size:
        return None
    size = SIZE.unpack(received[:start])[0] if len(received) >= start else QUESTION
    return bytes(received[start : start + size]) if len(received) >= start + size else None


def _failure(received: bytearray, limits: ProcessLimits) -> LimitExceeded | WorkFailed:
    """Why there is no output, by the status that came instead."""
    if len(received) != STATUS.size:
        return WorkLost("no answer in time, or its process was ended")
    code = os.waitstatus_to_exitcode(STATUS.unpack(received)[0])
    if -code in (signal.SIGKILL, signal.SIGTERM):
        return WorkLost(f"ended by {signal.Signals(-code).name}")
    if -code == signal.SIGALRM:  # of work that sets itself a time on the clock
        return LimitExceeded("its time on the clock")
    if -code in (signal.SIGPROF, signal.SIGXCPU):
        return LimitExceeded(f"{limits.cpu_s:g} s")
    if code == OUT_OF_MEMORY or -code == signal.SIGABRT:  # how an allocation that fails ends
        return LimitExceeded(f"{limits.memory_bytes >> 20} MB")
    return WorkFailed(
        f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    )
