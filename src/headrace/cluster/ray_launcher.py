"""Starts replicas on the nodes of a Ray cluster, which places processes and never sees a token."""

from __future__ import annotations

import importlib
import os
import secrets
import subprocess
import sys
from typing import Any

from headrace.config.extras import require
from headrace.errors import UsageError

ANSWER_S = 120.0
AUTH = "RAY_AUTH_MODE"


class ReplicaActor:
    """On a node: one process of `headrace.cluster.join`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, host: str, port: int, key: bytes) -> int:
        """Its process id."""
        command = [sys.executable, "-P", "-m", "headrace.cluster.join", host, str(port)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        assert self._process.stdin is not None
        self._process.stdin.write(key.hex().encode() + b"\n")
        self._process.stdin.close()
        return self._process.pid

    def wait(self, timeout: float | None) -> int | None:
        """The exit code; None where it still runs."""
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()


class RayProcess:
    """The front's handle of it, as `StartedProcess`."""

    def __init__(self, ray: Any, actor: Any, pid: int) -> None:
        self._ray, self._actor, self.pid = ray, actor, pid
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; -9 where the node or the actor is gone."""
        if self._code is not None:
            return self._code
        try:
            code = self._ray.get(self._actor.wait.remote(timeout), timeout=(timeout or ANSWER_S) + ANSWER_S)
        except self._ray.exceptions.RayError:
            code = -9
        if code is None:
            raise subprocess.TimeoutExpired("replica", timeout or 0.0)
        self._code = code
        self._ray.kill(self._actor)
        return code

    def kill(self) -> None:
        """End it."""
        if self._code is None:
            self._actor.kill.remote()


class RayLauncher:
    """On the cluster of RAY_ADDRESS, or on one of this machine that it starts. Raises UsageError where a
    cluster takes orders from anybody."""

    def __init__(self, threads: int) -> None:
        require("cluster", "ray")
        _want_token()  # Ray reads its settings when it is imported
        self._ray: Any = importlib.import_module("ray")
        self._threads = threads
        if not self._ray.is_initialized():
            self._ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def __call__(self, host: str, port: int, key: bytes) -> RayProcess:
        """See `remote_replica.Launch`."""
        actor = self._ray.remote(ReplicaActor).options(num_cpus=self._threads).remote()
        pid = self._ray.get(actor.start.remote(host, port, key), timeout=ANSWER_S)
        return RayProcess(self._ray, actor, pid)


def _want_token() -> None:
    if os.environ.get("RAY_ADDRESS"):
        if os.environ.get(AUTH) != "token":
            raise UsageError(
                f"{AUTH} is not token: a Ray cluster without it runs the code of anybody who can reach it. "
                "Start it with RAY_AUTH_MODE=token and give its RAY_AUTH_TOKEN here"
            )
        return
    os.environ[AUTH] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
