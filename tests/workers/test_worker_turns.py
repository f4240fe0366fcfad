"""Workers take turns with each other, and with whoever else has their file."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace import _native
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.workers import step_watch
from headrace.workers.engine_client import RemoteEngineClient
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import Spawner, turns_file
from headrace.workers.worker_loader import WorkerLoader
from tiny import Running

OPTIONS = EngineOptions(threads=1, max_num_seqs=4)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="turns between processes need Linux")


@pytest.fixture(params=[True, False], ids=["forks", "programs"])
def spawner(request: pytest.FixtureRequest) -> Iterator[Spawner]:
    found = Spawner(turns_file(), forks=request.param)
    yield found
    found.close()
    assert found.turns is not None
    os.close(found.turns)


def request(seed: int = 3) -> EngineRequest:
    return EngineRequest(prompt=(1, 2, 3), params=SamplingParams(max_tokens=12, seed=seed, ignore_eos=True))


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, a minute at most."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def load(folder: Path, spawner: Spawner) -> LoadedModel:
    launch = WorkerLoader(ModelSpec(name="tiny", model=str(folder), options=OPTIONS), spawner=spawner)
    launch.plan(None)
    return launch.load(lambda done, total: None)


def test_a_worker_that_waits_for_its_turn_is_not_killed(
    folder: Path, spawner: Spawner, here: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_watch, "LOOK_S", 0.1)
    monkeypatch.setattr(step_watch, "MIN_PATIENCE_S", 0.5)
    assert spawner.turns is not None
    arena = _native.Turns(spawner.turns)
    own = arena.join()
    with closing(load(folder, spawner)) as model:
        arena.begin(own, 1, math.inf, 0.0)
        waiting = Running(model.engine, request())
        until(lambda: model.engine.status().waits_for_turn)
        time.sleep(1.0)
        assert model.engine.status().restarts == 0
        arena.end(own, False)
        assert waiting.finish().bits == Running(here.engine, request()).finish().bits
        assert model.engine.status().restarts == 0
    arena.leave(own)


def test_a_worker_that_is_killed_holds_up_nobody_and_comes_back(
    folder: Path, spawner: Spawner, here: LoadedModel
) -> None:
    with closing(load(folder, spawner)) as first, closing(load(folder, spawner)) as second:
        assert isinstance(first.engine, RemoteEngineClient)
        expected = Running(here.engine, request()).finish().bits
        for _ in range(3):
            before = first.engine.status().restarts
            busy = Running(first.engine, request(1))
            os.kill(first.engine.worker_pid, signal.SIGKILL)
            assert Running(second.engine, request()).finish().bits == expected
            busy.finish()
            until(lambda before=before: first.engine.status().restarts > before)  # type: ignore[misc]
            assert Running(first.engine, request()).finish().bits == expected
        assert spawner.turns is not None
        arena = _native.Turns(spawner.turns)
        assert len(arena.members()) == 2  # the restarted one takes part
