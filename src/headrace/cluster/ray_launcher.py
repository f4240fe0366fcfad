"""Starts replicas on the nodes of a Ray cluster, which places processes and never sees a token."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from headrace.cluster import ray_driver
from headrace.cluster.ray_driver import ANSWER_S, DriverAnswer, Kill, Order, Start, Wait, receive, send
from headrace.config.extras import require
from headrace.elastic.placement import NoRoom
from headrace.errors import EngineStopped, UsageError
from headrace.workers.spawn import open_variables

AUTH = "RAY_AUTH_MODE"
GONE = -signal.SIGKILL
CLOSE_S = 20.0


class DriverLink:
    """The front's end of a `ray_driver`, and the process. Safe to share between threads."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._end, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", ray_driver.__name__, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], env=environment
            )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        ready: Future[DriverAnswer] = Future()
        self._awaited: dict[int, Future[DriverAnswer]] = {-1: ready}
        threading.Thread(target=self._read, name="headrace-ray", daemon=True).start()
        try:
            _value(ready, ANSWER_S)
        except BaseException:
            self.process.kill()
            raise

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""
        return self.process.poll() is None

    def close(self) -> None:
        """The driver ends at the end of its connection."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def number(self) -> int:
        """Of the next order."""
        return next(self._numbers)

    def call(self, order: Order, timeout_s: float) -> int | None:
        """What the driver answers. NoRoom, and EngineStopped where it is gone or Ray fails."""
        answer: Future[DriverAnswer] = Future()
        try:
            with self._lock:
                send(self._end, order)
                self._awaited[order.number] = answer  # its answer is read with the lock held
        except OSError:
            raise EngineStopped("the process that talks with Ray has ended: see the log") from None
        return _value(answer, timeout_s)

    def _read(self) -> None:
        while (body := receive(self._end)) is not None:
            answer = msgspec.msgpack.decode(body, type=DriverAnswer)
            with self._lock:
                awaited = self._awaited.pop(answer.number, None)
            if awaited is not None:
                awaited.set_result(answer)
        with self._lock:
            left, self._awaited = list(self._awaited.values()), {}
        for one in left:
            one.set_result(DriverAnswer(0, error="the process that talks with Ray has ended: see the log"))
        self._end.close()
        self.process.wait()


def _value(answer: Future[DriverAnswer], timeout_s: float) -> int | None:
    try:
        found = answer.result(timeout_s)
    except TimeoutError:
        raise EngineStopped(f"Ray has not answered within {timeout_s:g} s") from None
    if found.error is not None:
        raise NoRoom(found.error) if found.lacks else EngineStopped(found.error)
    return found.value


class RayProcess:
    """The front's handle of a replica, as `StartedProcess`."""

    def __init__(self, link: DriverLink, replica: int, pid: int) -> None:
        self._link, self._replica, self.pid = link, replica, pid
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; -9 where its node, its actor or the driver is gone."""
        if self._code is not None:
            return self._code
        wait_s = ANSWER_S if timeout is None else timeout
        try:
            order = Wait(self._link.number(), self._replica, wait_s)
            code = self._link.call(order, wait_s + 2.0)
        except EngineStopped:
            code = GONE
        if code is None:
            raise subprocess.TimeoutExpired("replica", wait_s)
        self._code = code
        return code

    def kill(self) -> None:
        """End it."""
        if self._code is None:
            with suppress(EngineStopped):
                self._link.call(Kill(self._link.number(), self._replica), ANSWER_S)


class RayLauncher:
    """On the cluster of RAY_ADDRESS, or on one of this machine that it starts. Raises UsageError where a
    cluster takes orders from anybody."""

    def __init__(self, threads: int) -> None:
        require("cluster", "ray")
        self._environment, self._threads = _with_token(), threads
        self._lock = threading.Lock()
        self._link: DriverLink | None = None

    def __call__(self, host: str, port: int, key: bytes) -> RayProcess:
        """See `remote_replica.Launch`."""
        link = self.running_link()
        order = Start(link.number(), host, port, key, self._threads)
        pid = link.call(order, ANSWER_S)
        assert pid is not None
        return RayProcess(link, order.number, pid)

    def close(self) -> None:
        """End the driver, and what it has started."""
        with self._lock:
            if self._link is not None:
                self._link.close()

    def running_link(self) -> DriverLink:
        """The driver, a new one where the last has ended."""
        with self._lock:
            if self._link is None or not self._link.alive:
                self._link = DriverLink(self._environment)
            return self._link


def _with_token() -> dict[str, str]:
    """The environment of a driver, which a cluster that it starts has, too: of secrets Ray's alone."""
    given = open_variables() | {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    if os.environ.get("RAY_ADDRESS"):
        if os.environ.get(AUTH) != "token":
            raise UsageError(
                f"{AUTH} is not token: a Ray cluster without it runs the code of anybody who can reach it. "
                "Start it with RAY_AUTH_MODE=token and give its RAY_AUTH_TOKEN here"
            )
        return given
    own = {AUTH: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return {**own, **given, AUTH: "token"}
