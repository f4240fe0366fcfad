"""Workers that are forks: they begin with what their parent has imported, and end as programs do."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.engine.client import LoadedModel
from headrace.loading.options import EngineOptions
from headrace.workers.engine_client import RemoteEngineClient
from headrace.workers.forked import ForkedProcess
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.spawn import Spawner, hide
from headrace.workers.worker_loader import WorkerLoader

OPTIONS = EngineOptions(threads=1, max_num_seqs=4)
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers are forks on Linux only")


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    found = Spawner()
    yield found
    found.close()


@pytest.fixture
def worker(spawner: Spawner) -> Iterator[WorkerProcess]:
    found = WorkerProcess(spawner=spawner)
    assert found.pid
    yield found
    found.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_workers_have_one_parent_which_has_one_thread(spawner: Spawner, worker: WorkerProcess) -> None:
    second = WorkerProcess(spawner=spawner)
    parent = parent_of(worker.pid)
    assert second.pid != worker.pid and parent_of(second.pid) == parent
    assert len(list(Path(f"/proc/{parent}/task").iterdir())) == 1
    assert second.close() == "ended with exit code 0"
    assert not has_ended(worker.pid)


def test_how_a_fork_ended_is_told(spawner: Spawner) -> None:
    first, second = (WorkerProcess(spawner=spawner) for _ in range(2))
    first.kill()
    assert list(first.messages()) == []
    assert first.close() == "was ended by SIGKILL"
    first.kill()  # nothing happens to whoever has its number now
    os.kill(second.pid, signal.SIGSEGV)
    assert second.close() == "was ended by SIGSEGV"


def test_a_fork_that_does_not_end_is_waited_for_in_vain(spawner: Spawner) -> None:
    spawned = spawner.spawn()
    assert isinstance(spawned.process, ForkedProcess)
    with pytest.raises(subprocess.TimeoutExpired):
        spawned.process.wait(0.05)
    spawned.process.kill()
    assert spawned.process.wait() == -signal.SIGKILL
    spawned.end.close()


def test_workers_outlive_their_parent_and_the_next_has_another(
    spawner: Spawner, worker: WorkerProcess
) -> None:
    parent = parent_of(worker.pid)
    os.kill(parent, signal.SIGKILL)
    until(lambda: has_ended(parent))
    assert not has_ended(worker.pid)
    second = WorkerProcess(spawner=spawner)
    assert parent_of(second.pid) != parent
    second.close()
    pid = worker.pid
    worker.kill()
    assert worker.close() == "was ended by SIGKILL"
    until(lambda: has_ended(pid))


def test_a_parent_that_is_killed_before_it_forks_is_told(spawner: Spawner) -> None:
    spawned = spawner.spawn()
    assert spawner._parent is not None
    parent = spawner._parent[0].pid
    os.kill(parent, signal.SIGKILL)
    process = WorkerProcess(spawned)
    assert list(process.messages()) == []
    assert process.pid == 0
    assert process.close() == "was ended by SIGKILL"


def test_a_variable_that_is_hidden_later_is_not_in_the_next_fork(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCESS_OF_WORK", "sesame")
    shown, hidden = WorkerProcess(spawner=spawner), None
    try:
        assert b"sesame" in Path(f"/proc/{shown.pid}/environ").read_bytes()
        hide(["ACCESS_OF_WORK"])
        hidden = WorkerProcess(spawner=spawner)
        assert b"sesame" not in Path(f"/proc/{hidden.pid}/environ").read_bytes()
    finally:
        for one in (shown, hidden):
            if one is not None:
                assert one.close() == "ended with exit code 0"


def test_the_parent_ends_with_its_last_worker(spawner: Spawner, worker: WorkerProcess) -> None:
    parent = parent_of(worker.pid)
    worker.close()
    assert not has_ended(parent)
    spawner.close()
    assert has_ended(parent)


def test_a_killed_model_comes_back_as_a_fork(folder: Path, spawner: Spawner) -> None:
    launch = WorkerLoader(ModelSpec(name="tiny", model=str(folder), options=OPTIONS), spawner=spawner)
    launch.plan(None)
    model: LoadedModel = launch.load(lambda done, total: None)
    assert isinstance(model.engine, RemoteEngineClient)
    first = model.engine.worker_pid
    parent = parent_of(first)
    os.kill(first, signal.SIGKILL)
    until(lambda: model.engine.status().restarts == 1 and model.engine.status().state == "running")
    second = model.engine.worker_pid
    assert second != first and parent_of(second) == parent
    model.close()
    assert has_ended(second)
