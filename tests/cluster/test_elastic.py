"""Replicas follow targets, and weights are replaced without a failed request: real processes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_cluster_client import request, running, until

from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.config.cluster_settings import ClusterSettings, read_cluster
from headrace.engine.client import LoadedModel
from headrace.errors import InvalidRequest, OutOfMemory, UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import Spawner
from tiny import Running

Start = Callable[..., ClusterClient]


def change(folder: Path) -> None:
    """Other weights in a file that takes the place of the old one, as a download does."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = max(tensors, key=lambda one: tensors[one].size)
    tensors[name] = np.ascontiguousarray(tensors[name][::-1])
    save_file(tensors, folder / "new", metadata={"format": "pt"})
    (folder / "new").replace(file)


def test_missed_targets_start_a_replica(cluster: Start) -> None:
    engine = cluster(replicas=1, min=1, max=2, ttft_ms=1e-3, idle_s=3600)
    assert engine.attained(0.0) is None, "nothing is known yet"

    def more() -> bool:
        for seed in range(4):
            Running(engine, request(seed, 2)).finish()
        return len(engine.replicas()) == 2

    until(more)
    assert engine.attained(time.monotonic()) == 0.0


def test_new_weights_without_a_failed_request(
    cluster: Start, folder: Path, here: LoadedModel, tmp_path: Path
) -> None:
    """Replies that have begun end with the old ones, though the drain is over at once."""
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    engine = cluster(own, replicas=2, max=2, drain_s=0.0)
    running(engine, 2)
    assert not engine.has_new_weights
    old = [one.pid for one in engine.replicas()]
    begun = [(one, Running(engine, one)) for one in (request(seed, 400) for seed in range(6))]
    for _, its in begun:
        its.next()
        its.ticket.pause(True)
    change(own)
    assert engine.has_new_weights
    assert engine.replace() == 2
    assert not engine.has_new_weights
    model = load_model(str(own), EngineOptions(threads=1, max_num_seqs=4))
    try:
        requests = [request(seed, 40) for seed in range(6)]
        changed = [Running(engine, one).finish().bits for one in requests]
        assert changed == [Running(model.engine, one).finish().bits for one in requests]
        assert changed != [Running(here.engine, one).finish().bits for one in requests], "weights differ"
    finally:
        model.close()
    assert not set(old).isdisjoint(one.pid for one in engine.replicas()), "one waits for its readers"
    for mine, its in begun:
        its.ticket.pause(False)
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    until(lambda: set(old).isdisjoint(one.pid for one in engine.replicas()))
    assert engine.status().restarts == 0


def test_another_tokenizer_is_no_update(cluster: Start, folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    engine = cluster(own, replicas=1)
    (own / "tokenizer_config.json").write_text("{}")
    change(own)
    with pytest.raises(InvalidRequest, match="tokenizer or the chat template"):
        engine.replace()
    Running(engine, request()).finish()


def test_more_replicas_than_there_is_memory_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    spawner = Spawner(forks=False)
    spec = ModelSpec(name="tiny", model=str(folder), options=EngineOptions(threads=64))
    loader = ClusterLoader(spec, ClusterSettings(replicas=64, max=64), spawner=spawner)
    assert "64 replicas with 64 threads each share" in caplog.text
    try:
        with pytest.raises(OutOfMemory, match="each of 64 replicas may have 1/64") as raised:
            loader.plan(64 << 10)
        assert raised.value.needed_bytes > 64 << 10
    finally:
        loader.close()
        spawner.close()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"ttft_ms": 100}, "there are always 1"),
        ({"met": 0.5, "max": 2}, "no effect without"),
        ({"max": 2, "tpot_ms": 0}, "cluster.tpot_ms"),
    ],
)
def test_targets_without_effect_are_refused(table: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_cluster(table)


@pytest.mark.parametrize(
    ("table", "numbers"),
    [
        ({"min": 2, "max": 4}, (2, 2, 4)),
        ({"min": 3}, (3, 3, 3)),
        ({"min": 0, "max": 4}, (1, 0, 4)),
        ({"max": 4}, (1, 1, 4)),
        ({"min": 1, "max": 4, "replicas": 2}, (2, 1, 4)),
    ],
)
def test_without_replicas_as_many_start_as_min_asks_for(
    table: dict[str, object], numbers: tuple[int, int, int]
) -> None:
    found = read_cluster(table)
    assert found is not None and (found.replicas, found.fewest, found.most) == numbers


def test_min_above_max_is_named() -> None:
    with pytest.raises(UsageError, match=r"cluster\.min is 3 and cluster\.max 2: min is at most max"):
        read_cluster({"min": 3, "max": 2})


def test_a_replica_that_starts_is_counted(cluster: Start) -> None:
    engine = cluster(replicas=2)
    until(lambda: engine.starting == 1)
    until(lambda: len(engine.replicas()) == 2)
    assert engine.starting == 0
