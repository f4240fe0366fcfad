"""The other side of a fork server: starts it, gives it work, tells why work failed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from headrace.isolation.fork_server import CALL, OUT_OF_MEMORY, SETUP, SIZE, STATUS
from headrace.isolation.limits import ProcessLimits

WAIT_S = 60.0
"""For one piece of work on a machine that is busy or was suspended: its time is counted in CPU seconds."""
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
        self._stopped = False

    def stop(self) -> None:
        """End it: its call raises WorkLost."""
        with self._lock:
            self._stopped = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

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
    ) -> bytes:
        """What the work makes of `payload`. Raises LimitExceeded, WorkFailed or WorkLost, this also where
        nothing has come for `wait_s`, which ends the work, or `stop` has ended it."""
        ours, theirs = socket.socketpair()
        with ours, (stop or WorkStop()).holding(ours):
            ours.settimeout(wait_s)
            with theirs:
                self._hand_over(theirs, CALL.pack(limits.cpu_s, limits.memory_bytes, niceness))
            received = bytearray()
            with suppress(OSError):  # it is gone: what came tells why; or it takes far too long
                ours.sendall(SIZE.pack(len(payload)) + payload)
                while _output(received) is None and (part := ours.recv(1 << 20)):
                    received += part
        output = _output(received)
        if output is None:
            raise _failure(received, limits)
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


def _output(received: bytearray) -> bytes | None:
    """The output, if all of it has come."""
    start = SIZE.size
    if len(received) <= STATUS.size:
        return None
    end = start + SIZE.unpack(received[:start])[0] if len(received) >= start else len(received) + 1
    return bytes(received[start:end]) if len(received) >= end else None


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
