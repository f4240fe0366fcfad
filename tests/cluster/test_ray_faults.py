"""Ray's GCS and a node are killed: replies go on with the same bytes, and replicas come back with Ray."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_cluster_client import request, running, until

from headrace.cluster.cluster_client import ClusterClient
from headrace.engine.client import LoadedModel
from tiny import Running

pytestmark = pytest.mark.skipif(
    "TEST_RAY" not in os.environ or importlib.util.find_spec("ray") is None,
    reason="needs Ray and TEST_RAY: `make nightly` runs it",
)


class RayCluster:
    """Nodes of this machine, whose processes are known by the folder of their session."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))  # its sockets' paths must be short
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def head(self) -> None:
        """Has no cores."""
        words = ("--head", "--port", self.address.rpartition(":")[2], "--temp-dir", str(self.folder))
        self._start(*words, "--node-ip-address", "127.0.0.1", "--num-cpus", "0", "--include-dashboard=false")

    def node(self, cpus: int) -> None:
        """Another raylet."""
        self._start("--address", self.address, "--num-cpus", str(cpus))

    def _start(self, *words: str) -> None:
        command = [str(Path(sys.executable).parent / "ray"), "start", *words]
        subprocess.run(
            [*command, "--object-store-memory", "80000000", "--disable-usage-stats"],
            check=True,
            capture_output=True,
            timeout=120,
        )

    def pids(self, word: str) -> list[int]:
        """Of its processes with this word in their command line."""
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
                if word in line and str(self.folder) in line:
                    found.append(int(folder.name))
        return found

    def kill(self, word: str) -> None:
        """All processes with this word."""
        for pid in self.pids(word):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """At the end of a test."""
        self.kill("")
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    found = RayCluster()
    for name, value in {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ADDRESS": found.address,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "3",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS")  # `ray start --head` refuses it
    found.head()
    found.node(1)
    monkeypatch.setenv("RAY_ADDRESS", found.address)
    yield found
    found.close()


def test_the_gcs_is_killed(
    ray_cluster: RayCluster,
    cluster: Callable[..., ClusterClient],
    here: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = cluster(replicas=3, max=3, launcher="ray", hang_s=2.0)
    running(engine, 2)
    until(lambda: engine.problem is not None)
    problem = engine.problem or ""
    assert "a replica takes 1 core: " in problem and "has 0 of 1 core free" in problem

    def same_bytes(then: Callable[[], None]) -> None:
        requests = [request(seed, 60) for seed in range(8)]
        there = [Running(engine, one) for one in requests]
        then()
        for mine, its in zip(requests, there, strict=True):
            assert its.finish().bits == Running(here.engine, mine).finish().bits

    same_bytes(lambda: ray_cluster.kill("gcs_server"))
    until(lambda: not ray_cluster.pids("raylet/raylet"))  # they follow their GCS
    same_bytes(lambda: None)
    assert engine.status().alive
    ray_cluster.kill("")
    monkeypatch.delenv("RAY_ADDRESS")
    ray_cluster.head()
    ray_cluster.node(1)
    running(engine, 2)
    same_bytes(lambda: ray_cluster.kill("raylet/raylet"))
