"""What Ray runs on a node for each replica: an actor that starts a process and ends it."""

from __future__ import annotations

import subprocess
import sys

from headrace.workers.spawn import open_variables


class ReplicaActor:
    """On a node: one process of `headrace.cluster.join`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, host: str, port: int, key: bytes) -> int:
        """Its process id."""
        command = [sys.executable, "-P", "-m", "headrace.cluster.join", host, str(port)]
        environment = open_variables()  # Ray's token is none of them
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
