"""Workers that connect to the front by TCP: a launcher starts each somewhere, and says nothing of tokens."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from headrace import __version__
from headrace.cluster.join import Hello, HelloReply, receive_hello, send_hello
from headrace.cluster.replica_pool import ReplicaRefused
from headrace.cluster.sealed_socket import NotAuthenticated, SealedSocket, seal
from headrace.cluster.weights_digest import weights_digest
from headrace.errors import EngineStopped
from headrace.workers.forked import StartedProcess
from headrace.workers.process import WorkerProcess
from headrace.workers.spawn import Spawned, Spawner

JOIN_S = 120.0
LOOK_S = 5.0
"""How often a front that waits for a replica looks whether that has ended."""
KEY_BYTES = 32
ACCEPT_S = 0.05
MAX_HANDSHAKES = 64
"""At a time. A replica takes a millisecond or two for its own."""

Launch = Callable[[str, int, bytes], StartedProcess]
"""Starts `headrace.cluster.join` somewhere: address and port of the front, and the key of this replica."""


class RemoteReplicas:
    """Makes workers with a launcher. Each has a key of its own, drawn here, and a port that is open until it
    has connected. `here`: the launcher starts them on this machine."""

    def __init__(
        self, launch: Launch, model: Path, *, host: str, spawner: Spawner, here: bool = False
    ) -> None:
        self._launch, self._model, self._host, self._spawner = launch, model, host, spawner
        self._here = here

    def __call__(self) -> WorkerProcess:
        """Raises ReplicaRefused where it runs something else, EngineStopped where it never connects."""
        key = secrets.token_bytes(KEY_BYTES)
        hello = Hello(version=__version__, model=str(self._model), digest=weights_digest(self._model))
        with socket.create_server((self._host, 0)) as listener:
            process = self._launch(self._host, listener.getsockname()[1], key)
            try:
                end = _accepted(listener, key, process)
            except BaseException:
                process.kill()
                raise
        try:
            send_hello(end, hello)
            reply = receive_hello(end, HelloReply)
            if reply.refusal is not None:
                raise ReplicaRefused(f"a replica was refused: {reply.refusal}")
        except BaseException:
            end.close()
            process.kill()
            raise
        remote = RemoteProcess(process, end)
        worker = WorkerProcess(Spawned(remote, cast("socket.socket", end), self._spawner))
        if not self._here:
            worker.host = end.peer
        return worker


class RemoteProcess:
    """A replica's process, which may be on a machine that does not answer any more: to kill it is to cut its
    connection, at which it ends itself, and nobody waits for that."""

    def __init__(self, process: StartedProcess, end: SealedSocket) -> None:
        self._process, self._end, self.pid = process, end, process.pid
        self._killed = False

    def wait(self, timeout: float | None = None) -> int:
        """See `StartedProcess`."""
        return -signal.SIGKILL if self._killed else self._process.wait(timeout)

    def kill(self) -> None:
        """See `StartedProcess`."""
        self._killed = True
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # what reads or writes there goes on
        threading.Thread(target=self._end_there, name="headrace-kill", daemon=True).start()

    def _end_there(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(JOIN_S)


class _Handshakes:
    """Connections to a port, of which one knows the key. Each proves it on a thread of its own, so that a
    stranger who says nothing holds up nobody; where there are too many, the one that has taken longest goes.
    """

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener, self._key = listener, key
        self._lock = threading.Lock()
        self._pending: deque[socket.socket] = deque()
        self._found: SealedSocket | None = None
        self._closed = False

    def first(self, timeout_s: float) -> SealedSocket | None:
        """The first that knows the key; None where there is none in time."""
        until_s = time.monotonic() + timeout_s
        self._listener.settimeout(ACCEPT_S)
        while self._found is None and time.monotonic() < until_s:
            with suppress(TimeoutError):
                self._begin(self._listener.accept()[0])
        with self._lock:
            found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Close the others."""
        with self._lock:
            self._closed, found, self._found = True, self._found, None
            pending = list(self._pending)
        for end in pending:
            _end(end)
        if found is not None:
            found.close()

    def _begin(self, end: socket.socket) -> None:
        with self._lock:
            self._pending.append(end)
            late = self._pending.popleft() if len(self._pending) > MAX_HANDSHAKES else None
        if late is not None:
            _end(late)
        threading.Thread(target=self._seal, args=(end,), name="headrace-handshake", daemon=True).start()

    def _seal(self, end: socket.socket) -> None:
        try:
            sealed = seal(end, self._key, is_front=True)
        except NotAuthenticated:
            sealed = None
        with self._lock:
            with suppress(ValueError):
                self._pending.remove(end)
            if sealed is not None and self._found is None and not self._closed:
                self._found, sealed = sealed, None
        if sealed is not None:
            sealed.close()


def _end(end: socket.socket) -> None:
    """Its thread reads the end, and closes it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _accepted(listener: socket.socket, key: bytes, process: StartedProcess) -> SealedSocket:
    """The first connection that knows the key; others are closed. EngineStopped where none comes."""
    until_s, handshakes = time.monotonic() + JOIN_S, _Handshakes(listener, key)
    how = f"did not connect within {JOIN_S:g} s"
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            found = handshakes.first(min(left_s, LOOK_S))
            if found is not None:
                return found
            with suppress(subprocess.TimeoutExpired):
                how = f"ended with exit code {process.wait(0.0)} before it had connected"
                break
    finally:
        handshakes.close()
    host, port = listener.getsockname()[:2]
    raise EngineStopped(
        f"a replica {how} to {host}:{port}: that must be an address of this machine which the replica's "
        "machine can reach (--listen); see also the log of where it was started"
    )
