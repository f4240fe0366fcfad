"""What a worker does before it computes stands back for other workers."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from headrace.loading.options import EngineOptions
from headrace.workers.engine_client import RemoteEngineClient
from headrace.workers.low_priority import NICE, in_low_priority
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import spawn
from headrace.workers.worker_loader import WorkerLoader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads need Linux")


def priority(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_work_runs_at_a_lower_priority_than_its_caller() -> None:
    own = priority(threading.get_native_id())
    assert in_low_priority(lambda: priority(threading.get_native_id())) == min(19, own + NICE)
    assert priority(threading.get_native_id()) == own


def test_errors_are_the_callers() -> None:
    with pytest.raises(KeyError, match="x"):
        in_low_priority(lambda: {}["x"])


def test_a_worker_imports_at_a_lower_priority() -> None:
    own = priority(os.getpid())
    assert own < 19
    spawned = spawn()
    try:
        seen = set[int]()
        while spawned.process.poll() is None and not seen - {own}:
            seen |= priorities(spawned.process.pid)
            time.sleep(0.001)
        assert seen == {own, min(19, own + NICE)}
    finally:
        spawned.end.close()
        spawned.process.kill()
        spawned.process.wait()


def test_a_worker_computes_at_the_priority_of_its_server(folder: Path) -> None:
    launch = WorkerLoader(ModelSpec(name="tiny", model=str(folder), options=EngineOptions(threads=2)))
    launch.plan(None)
    model = launch.load(lambda done, total: None)
    assert isinstance(model.engine, RemoteEngineClient)
    with closing(model.engine):
        assert priorities(model.engine.worker_pid) == {priority(os.getpid())}


def priorities(pid: int) -> set[int]:
    """Those of the threads of a process."""
    found = set[int]()
    for one in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.add(priority(int(one.name)))
        except OSError:  # it has ended
            continue
    return found
