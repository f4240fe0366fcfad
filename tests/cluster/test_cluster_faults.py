"""Faults of networks and nodes: nothing is lost, no byte differs, nobody waits for what does not answer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FaultyNetwork
from msgspec.structs import replace
from test_cluster_client import mixed, request, running, until
from test_page_moves import long_request

from headrace.cluster import leaving
from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.cluster.remote_replica import RemoteReplicas
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.spawn import Spawner
from tiny import Running

Start = Callable[..., tuple[ClusterClient, FaultyNetwork]]


def launch(host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
    """As Ray does on a node."""
    command = [sys.executable, "-P", "-m", "headrace.cluster.join", host, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(key.hex().encode() + b"\n")
    process.stdin.close()
    return process


@pytest.fixture
def networked(folder: Path) -> Iterator[Start]:
    """A model with one replica here, and the others behind a network with faults."""
    models: list[LoadedModel] = []
    networks: list[FaultyNetwork] = []
    spawner = Spawner()

    def load(**settings: object) -> tuple[ClusterClient, FaultyNetwork]:
        network = FaultyNetwork(launch)
        networks.append(network)

        class Networked(ClusterLoader):
            def _maker(self, path: Path) -> Callable[[], WorkerProcess]:
                return RemoteReplicas(network, path, host="127.0.0.1", spawner=self._process.spawner)

        options = EngineOptions(threads=1, max_num_seqs=4)
        found = ClusterSettings(launcher="ray", **settings)  # pyright: ignore[reportArgumentType]
        loader = Networked(ModelSpec(name="tiny", model=str(folder), options=options), found, spawner=spawner)
        loader.plan(None)
        models.append(loader.load(lambda done, total: None))
        engine = models[-1].engine
        assert isinstance(engine, ClusterClient)
        return engine, network

    yield load
    for network in networks:
        network.close()
    for model in models:
        model.close()
    spawner.close()


Asked = list[tuple[EngineRequest, Running]]


def ask(engine: ClusterClient, requests: Iterable[EngineRequest]) -> Asked:
    return [(one, Running(engine, one)) for one in requests]


def same_bytes(here: LoadedModel, asked: Asked) -> None:
    for mine, its in asked:
        assert its.finish().bits == Running(here.engine, mine).finish().bits


def remote(engine: ClusterClient) -> list[int]:
    """The numbers of replicas that are reached by the network."""
    return [one.replica for one in engine.replicas() if one.node != "local"]


def test_a_partition(networked: Start, here: LoadedModel) -> None:
    """The other side is given up without waiting for it; when it comes back nobody listens to it."""
    engine, network = networked(replicas=2, max=2, hang_s=1.0)
    running(engine, 2)
    old = next(one.pid for one in engine.replicas() if one.node != "local")
    asked = ask(engine, (request(seed, 60) for seed in range(6)))
    network.proxies[0].cut()
    same_bytes(here, asked)
    until(lambda: old not in [one.pid for one in engine.replicas()])
    running(engine, 2)
    network.proxies[0].heal()
    assert network.processes[0].wait(60) is not None, "a replica ends when its front is gone"
    same_bytes(here, ask(engine, (request(seed, 20) for seed in range(6))))
    assert engine.status().restarts == 1


@pytest.mark.nightly
def test_a_slow_network_changes_no_byte(networked: Start, here: LoadedModel) -> None:
    engine, network = networked(replicas=2, max=2, policy="round-robin", hang_s=5.0)
    running(engine, 2)
    network.proxies[0].delay_s = 0.02
    same_bytes(here, ask(engine, (mixed(seed, 20) for seed in range(6))))
    assert engine.status().restarts == 0 and len(remote(engine)) == 1


def test_a_replica_that_is_asked_to_end_on_its_node_drains(
    networked: Start, here: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `headrace cluster leave` does before a node is shut down."""
    engine, network = networked(replicas=2, max=2, drain_s=0.0)
    running(engine, 2)
    asked = ask(engine, (replace(long_request(seed, 200), constraint=None) for seed in range(0, 12, 3)))
    asked[0][1].next()
    old = network.processes[0]
    known = leaving._is_replica
    assert known(old.pid) and not known(os.getpid()) and not known(1 << 30)
    monkeypatch.setattr(leaving, "_is_replica", lambda number: number == old.pid and known(number))
    assert leaving.leave(60) == ([old.pid], [])
    assert old.wait(60) == 0
    same_bytes(here, asked)
    running(engine, 2)
    assert engine.status().restarts == 0, "it was drained, not lost"


@pytest.mark.nightly
def test_replicas_are_replaced_where_there_is_no_room_for_one_more(
    networked: Start, here: LoadedModel
) -> None:
    engine, network = networked(replicas=3, max=3)
    running(engine, 3)
    before = {one.pid for one in engine.replicas()}
    network.most = 3  # the first replica is here: one more fits once
    asked = ask(engine, (request(seed, 60) for seed in range(6)))
    assert engine.replace() == 3
    same_bytes(here, asked)
    until(lambda: before.isdisjoint(one.pid for one in engine.replicas()))
    running(engine, 3)
    assert engine.status().restarts == 0


@pytest.mark.soak
def test_two_hundred_faults_of_a_network(networked: Start, here: LoadedModel) -> None:
    """Partitions that heal or not, slow links, kills and stops, under a mixed load."""
    engine, network = networked(replicas=3, max=3, hang_s=1.0)
    drawn, done = random.Random(9), 0
    while done < 200:
        running(engine, 3)
        asked = ask(engine, (mixed(drawn.randrange(1000), 40) for _ in range(10)))
        for _ in range(2):
            alive = [place for place, one in enumerate(network.processes) if one.poll() is None]
            place, kind = drawn.choice(alive), drawn.choice(("cut", "heal", "slow", "kill", "stop"))
            proxy, process = network.proxies[place], network.processes[place]
            if kind in ("cut", "heal"):
                proxy.cut()
            if kind == "heal":
                time.sleep(drawn.uniform(0.0, 2.0))
                proxy.heal()
            if kind == "slow":
                proxy.delay_s = drawn.choice((0.0, 0.05))
            if kind in ("kill", "stop"):
                process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            done += 1
        same_bytes(here, asked)
    until(lambda: engine.load() == (0, 0))
