"""Replicas that connect by TCP: real processes, and strangers on the port."""

from __future__ import annotations

import importlib
import importlib.util
import math
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
from typing import cast

import pytest
from msgspec.structs import replace
from test_cluster_client import request, running, until

from headrace.cluster import ray_launcher, remote_replica
from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.cluster.join import Hello, refusal
from headrace.cluster.prefix_index import group_keys
from headrace.cluster.remote_replica import MAX_HANDSHAKES, RemoteReplicas
from headrace.cluster.replica_actor import ReplicaActor
from headrace.cluster.replica_link import ReplicaEvents, ReplicaLink
from headrace.cluster.replica_pool import ReplicaRefused
from headrace.cluster.sealed_socket import KEEP_ALIVE, MAX_RECORD_BYTES, NotAuthenticated, SealedSocket, seal
from headrace.cluster.weights_digest import weights_digest
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import LoadedModel
from headrace.errors import EngineStopped
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import FromWorker, HotTexts, LoadModel, PlanModel
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


def test_a_worker_that_a_signal_without_a_name_ends_has_ended() -> None:
    """Whoever waits for its end would never hear of it."""
    worker = WorkerProcess(spawner=Spawner(forks=False))
    number = signal.SIGRTMIN + 6
    os.kill(worker.pid, number)
    assert worker.close() == f"was ended by signal {number:d}"


def test_strangers_that_say_nothing_hold_up_no_replica(
    folder: Path, opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served one after another, each of them would take the three seconds that a replica waits."""
    monkeypatch.setattr("headrace.cluster.remote_replica.JOIN_S", 10.0)

    def launch_late(host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
        opened.extend(socket.create_connection((host, port)) for _ in range(MAX_HANDSHAKES + 8))
        return launch(host, port, key)

    made = RemoteReplicas(launch_late, folder, host="127.0.0.1", spawner=Spawner(forks=False))()
    assert made.close() == "ended with exit code 0"
    assert all(end.recv(100) is not None and not end.recv(100) for end in opened[8:]), "they are closed"


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


def test_the_digest_of_weights_is_of_all_that_is_loaded(tmp_path: Path) -> None:
    """Also of a model's other parts, and of what its modules have in folders of their own."""
    model, parts = tmp_path / "model", [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    files = [*parts, model / "modules.json", model / "config.json", model / "2_Dense" / "model.safetensors"]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"a" * (number + 1))
    (model / "2_Dense" / "notes.md").write_text("not read")
    for path, whose in ((parts[0], parts), (model, files[2:])):
        before = weights_digest(path)
        for file in whose:
            old = file.read_bytes()
            file.write_bytes(old + b"b")
            assert weights_digest(path) != before, file
            file.write_bytes(old)
        assert weights_digest(path) == before
    assert weights_digest(parts[1]) == weights_digest(parts[0])
    parts[1].unlink()
    assert weights_digest(parts[0]), "a file may only have such a name"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_replicas_and_ray_get_no_secrets_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("HEADRACE_API_KEY", "HEADRACE_LEDGER", "OPENAI_API_KEY", "RAY_AUTH_TOKEN")
    values = {name: f"secret of {name}" for name in names}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    driver = ray_launcher._with_token()
    assert [name for name in names if name in driver] == ["RAY_AUTH_TOKEN"]
    assert driver["PATH"] == os.environ["PATH"] and driver["RAY_AUTH_MODE"] == "token"
    actor = ReplicaActor()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = actor.start("127.0.0.1", listener.getsockname()[1], KEY)
        until(lambda: bool(Path(f"/proc/{number}/environ").read_bytes()))  # a moment later
        seen = Path(f"/proc/{number}/environ").read_bytes() + Path(f"/proc/{number}/cmdline").read_bytes()
        actor.kill()
        actor.wait(10)
    assert b"headrace.cluster.join" in seen
    assert not any(value.encode() in seen for value in (*values.values(), KEY.hex()))


class _Says:
    """A worker process that says one thing."""

    host, pid, closed = "local", 1, 0

    def __init__(self, message: FromWorker) -> None:
        self._message = message

    def messages(self) -> Iterator[FromWorker]:
        yield self._message

    def close(self) -> str:
        self.closed += 1
        return "ended"


def test_a_replica_that_sends_what_nobody_expects_is_lost(cluster: Callable[..., ClusterClient]) -> None:
    """Its requests would wait for ever if the thread that reads its messages had ended by an exception."""
    engine = cluster(replicas=1, max=1)
    [ready] = [one.ready for one in engine._pool.links]
    process = _Says(HotTexts(0, [((True, "", ""), 0, (2**64 - 1,) * 200)]))
    lost: list[str] = []

    class Told:
        """What a front does with a message."""

        def moved(self, link: ReplicaLink, report: HotTexts) -> None:
            group_keys(report.texts[0][2], "")

        def lost(self, link: ReplicaLink, how: str) -> None:
            lost.append(how)

    link = ReplicaLink(7, cast("WorkerProcess", process), ready, cast("ReplicaEvents", Told()))
    link.start()
    link.join()
    assert lost == ["ended"] and process.closed == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_costs_that_no_machine_has_do_not_count(wrong: float, cluster: Callable[..., ClusterClient]) -> None:
    engine = cluster(replicas=1, max=1)
    [link] = engine._pool.links
    link.computed_s = time.monotonic()
    engine._learn(link, replace(link.status, step_costs=(1e-3, wrong, 1e-3, 0.0)))
    assert engine.router.replicas[link.number].costs is None
    engine._learn(link, replace(link.status, step_costs=(1e-3, 1e-3, 1e-3, 0.0)))
    assert engine.router.replicas[link.number].costs is not None


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


def test_a_machine_that_is_gone_is_noticed(opened: list[socket.socket]) -> None:
    """By the kernel, also where nothing is to be sent: a replica would wait for its server for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours = listener.accept()[0]
    opened += ours, theirs
    thread = threading.Thread(target=seal, args=(theirs, KEY), kwargs={"is_front": False})
    thread.start()
    seal(ours, KEY, is_front=True)
    thread.join()
    for end in (ours, theirs):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in KEEP_ALIVE.items():
            assert end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        assert end.gettimeout() is None


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
