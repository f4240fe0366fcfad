"""Replicas that connect by TCP: real processes, and strangers on the port."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_cluster_client import request, running

from headrace.cluster import remote_replica
from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.cluster.join import Hello, refusal
from headrace.cluster.remote_replica import RemoteReplicas
from headrace.cluster.replica_pool import ReplicaRefused
from headrace.cluster.sealed_socket import MAX_RECORD_BYTES, NotAuthenticated, SealedSocket, seal
from headrace.cluster.weights_digest import weights_digest
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import LoadedModel
from headrace.errors import EngineStopped
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.protocol import LoadModel, PlanModel
from headrace.workers.spawn import Spawner
from tiny import Running

OPTIONS = EngineOptions(threads=1, max_num_seqs=4)
KEY = bytes(range(32))


def launch(host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
    """As Ray does on a node, after a stranger has connected."""
    stranger = socket.create_connection((host, port))
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
    stranger.close()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace.cluster.join", host, str(port)], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(key.hex().encode() + b"\n")
    process.stdin.close()
    return process


def test_a_worker_by_tcp_loads_and_ends(folder: Path) -> None:
    made = RemoteReplicas(launch, folder, host="127.0.0.1", spawner=Spawner(forks=False), here=True)()
    assert made.host == "local"
    made.put(PlanModel(str(folder), OPTIONS))
    assert made.planned().page_count > 0
    made.put(LoadModel())
    assert made.ready(lambda done, total: None).vocabulary > 0
    assert made.close() == "ended with exit code 0"


def test_a_replica_that_ends_before_it_connects_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one on another machine, to which `listen` is an address of its own."""
    monkeypatch.setattr(remote_replica, "LOOK_S", 0.05)

    def lost(host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    made = RemoteReplicas(lost, folder, host="127.0.0.1", spawner=Spawner(forks=False))
    with pytest.raises(EngineStopped, match=r"exit code 3 before .* to 127\.0\.0\.1:\d+: .*--listen"):
        made()


def test_a_replica_that_never_connects_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_replica, "LOOK_S", 0.05)
    monkeypatch.setattr(remote_replica, "JOIN_S", 0.2)
    started: list[subprocess.Popen[bytes]] = []

    def silent(host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[0]

    with pytest.raises(EngineStopped, match="did not connect within"):
        RemoteReplicas(silent, folder, host="127.0.0.1", spawner=Spawner(forks=False))()
    assert started[0].wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("address", "warns"), [("127.0.0.1", True), ("localhost", True), ("10.0.0.1", False)]
)
def test_an_address_that_no_other_machine_reaches_is_warned_of(
    folder: Path, address: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    spec = ModelSpec(name="tiny", model=str(folder), options=OPTIONS)
    settings = ClusterSettings(replicas=2, launcher="ray", listen=address)
    spawner = Spawner(forks=False)
    loader = ClusterLoader(spec, settings, spawner=spawner)
    loader.close()
    spawner.close()
    assert ("with --listen" in caplog.text) == warns


def test_other_files_are_refused(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    same = Hello(version="0", model=str(own), digest=weights_digest(folder))
    assert "install the same" in (refusal(same) or "")

    started: list[subprocess.Popen[bytes]] = []

    def changed(host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
        (own / "config.json").write_text((own / "config.json").read_text() + " ")
        started.append(launch(host, port, key))
        return started[0]

    with pytest.raises(ReplicaRefused, match="have the digest"):
        RemoteReplicas(changed, own, host="127.0.0.1", spawner=Spawner(forks=False))()
    assert [process.wait(10) for process in started] in ([1], [-9])


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Sockets that are closed at the end of the test."""
    ends: list[socket.socket] = []
    yield ends
    for end in ends:
        end.close()


Pair = tuple[SealedSocket, SealedSocket, socket.socket]


def pair(opened: list[socket.socket], replica_key: bytes = KEY) -> Pair:
    """Both ends of a connection, and the wire of the front's."""
    ours, theirs = socket.socketpair()
    opened += ours, theirs
    found: list[SealedSocket] = []

    def reply() -> None:
        with suppress(NotAuthenticated):
            found.append(seal(theirs, replica_key, is_front=False))

    thread = threading.Thread(target=reply)
    thread.start()
    try:
        front = seal(ours, KEY, is_front=True)
    finally:
        thread.join()
    return front, found[0], ours


def test_a_stranger_that_sends_a_byte_at_a_time_is_left(
    opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time; all of them together do not. The port serves one connection at a time."""
    monkeypatch.setattr("headrace.cluster.sealed_socket.HANDSHAKE_S", 0.5)
    ours, theirs = socket.socketpair()
    opened += ours, theirs
    sent = 0

    def drip() -> None:
        nonlocal sent
        with suppress(OSError):
            for byte in b"headrace-replica-1" + bytes(64):
                theirs.sendall(bytes([byte]))
                sent += 1
                time.sleep(0.1)

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(NotAuthenticated):
        seal(ours, KEY, is_front=True)
    assert sent < 50, "it waited for all that the stranger would send"
    thread.join()


def test_records_arrive_whole_and_in_order(opened: list[socket.socket]) -> None:
    front, replica, _ = pair(opened)
    data = os.urandom(3 * MAX_RECORD_BYTES + 17)
    sender = threading.Thread(target=front.sendall, args=(data,))
    sender.start()
    taken = b""
    while len(taken) < len(data):
        taken += replica.recv(70_000)
    sender.join()
    assert taken == data


def test_another_key_is_refused(opened: list[socket.socket]) -> None:
    with pytest.raises(NotAuthenticated, match="does not know"):
        pair(opened, bytes(32))


@pytest.mark.parametrize(
    "wire",
    [
        struct.pack("<I", 4) + b"abcd" + bytes(16),
        struct.pack("<I", 2**32 - 1) + bytes(64),
        struct.pack("<I", 0) + bytes(64),
    ],
    ids=["wrong tag", "too long", "empty"],
)
def test_a_record_of_somebody_else_ends_the_connection(wire: bytes, opened: list[socket.socket]) -> None:
    _, replica, end = pair(opened)
    end.sendall(wire)
    with pytest.raises(OSError, match="a record"):
        replica.recv(10)


def test_a_record_that_is_sent_again_ends_the_connection(opened: list[socket.socket]) -> None:
    ours, theirs = socket.socketpair()
    send_key, back_key = bytes(32), bytes([1] * 32)
    copy_from, copy_to = socket.socketpair()
    opened += ours, theirs, copy_from, copy_to
    SealedSocket(copy_from, send_key, back_key).sendall(b"abc")
    record = copy_to.recv(1000)
    ours.sendall(record + record)
    replica = SealedSocket(theirs, back_key, send_key)
    assert replica.recv(10) == b"abc"
    with pytest.raises(OSError, match="wrong tag"):
        replica.recv(10)


@pytest.mark.skipif(
    "TEST_RAY" not in os.environ or importlib.util.find_spec("ray") is None,
    reason="needs Ray and TEST_RAY: `make nightly` runs it",
)
@pytest.mark.filterwarnings("ignore")
def test_replicas_on_ray(cluster: Callable[..., ClusterClient], here: LoadedModel) -> None:
    engine = cluster(replicas=2, max=2, launcher="ray")
    running(engine, 2)
    requests = [request(seed, 40) for seed in range(8)]
    there = [Running(engine, one) for one in requests]
    os.kill(max(engine.replicas(), key=lambda one: one.replica).pid, 9)
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    running(engine, 2)
