"""Replicas give the bytes of one engine, whatever becomes of them: real processes, killed and stopped."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.cluster_client import ClusterClient
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest, RequestFailed
from headrace.errors import EngineStopped, InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running

Start = Callable[..., ClusterClient]


def request(seed: int = 3, tokens: int = 12, **more: Any) -> EngineRequest:
    params = SamplingParams(seed=seed, max_tokens=tokens, n=1 + seed % 2, logprobs=2, ignore_eos=True)
    prompt = (*range(5, 5 + seed % 3 * 40), 6, 7 + seed % 20)
    return EngineRequest(prompt=prompt, params=params, **more)


def mixed(seed: int, tokens: int) -> EngineRequest:
    """Every fifth has a grammar."""
    constraint = Constraint("regex", f"[ab]{{{tokens}}}") if seed % 5 == 0 else None
    return request(seed, tokens, constraint=constraint)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def running(engine: ClusterClient, count: int) -> None:
    until(lambda: len([one for one in engine.replicas() if one.state == "running"]) == count)


def test_replicas_give_the_bits_of_one_engine(cluster: Start, here: LoadedModel) -> None:
    engine = cluster(replicas=3, max=3)
    running(engine, 3)
    requests = [mixed(seed, 12) for seed in range(24)]
    there = [Running(engine, one) for one in requests]
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    assert sum(one.steps > 0 for one in engine.replicas()) == 3, "all took part"
    status = engine.status()
    assert (status.running, status.waiting, status.state, status.restarts) == (0, 0, "running", 0)
    assert sum(one.requests for one in engine.replicas()) == 0
    assert engine.limits == here.engine.limits


def test_equal_beginnings_go_where_they_are_cached(cluster: Start) -> None:
    engine = cluster(replicas=2, max=2)
    running(engine, 2)
    params = SamplingParams(seed=1, max_tokens=2)
    long = tuple(5 + number % 50 for number in range(200))
    first = Running(engine, EngineRequest(prompt=long, params=params)).finish()
    assert first.done.usage.cached_tokens == 0
    for number in range(4):
        again = Running(engine, EngineRequest(prompt=(*long, 7 + number), params=params)).finish()
        assert again.done.usage.cached_tokens >= 192
    other = EngineRequest(prompt=(*long, 7), params=params, cache_salt="another key")
    assert Running(engine, other).finish().done.usage.cached_tokens == 0


def prompt(seed: int, tokens: int) -> EngineRequest:
    drawn = random.Random(seed)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    return EngineRequest(prompt=tuple(drawn.randrange(10, 120) for _ in range(tokens)), params=params)


def test_costs_are_measured_and_forgotten(cluster: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = cluster(replicas=2, max=2)
    running(engine, 2)
    assert [one.costs_from for one in engine.replicas()] == ["assumed"] * 2
    seeds = itertools.count()

    def are_measured() -> bool:
        both = [Running(engine, prompt(next(seeds), 100)) for _ in range(4)]
        for one in both:
            one.finish()
        return all(one.costs_from == "measured" and one.costs for one in engine.replicas())

    until(are_measured)
    monkeypatch.setattr("headrace.cluster.cluster_client.STALE_S", 0.2)
    until(lambda: {one.costs_from for one in engine.replicas()} == {"assumed"})


def test_a_slow_replica_gets_less(cluster: Start) -> None:
    """It is stopped most of the time, until the router knows; then it gets nothing that the other can do."""
    engine = cluster(Path("mini"), replicas=2, max=2)
    running(engine, 2)
    slow = engine.replicas()[1]
    quick, seeds = threading.Event(), itertools.count()

    def hold_back() -> None:
        while not quick.is_set():
            os.kill(slow.pid, signal.SIGSTOP)
            time.sleep(0.004)
            os.kill(slow.pid, signal.SIGCONT)
            time.sleep(0.001)

    def prefill_s() -> list[float]:
        return [0.0 if one.costs is None else one.costs.prefill_s for one in engine.replicas()]

    def is_known() -> bool:
        both = [Running(engine, prompt(next(seeds), 400)) for _ in range(4)]
        for one in both:
            one.finish()
        fast_s, slow_s = prefill_s()
        return [one.costs_from for one in engine.replicas()] == ["measured"] * 2 and slow_s > 2 * fast_s

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        until(is_known)
    finally:
        quick.set()
        thread.join()
    steps = engine.replicas()[1].steps
    for _ in range(5):
        Running(engine, prompt(next(seeds), 400)).finish()
    assert engine.replicas()[1].steps == steps


def faults(engine: ClusterClient, here: LoadedModel, count: int, seed: int) -> None:
    """So many kills and stops under a mixed load: nothing is lost, no byte differs."""
    drawn = random.Random(seed)
    done = 0
    while done < count:
        requests = [mixed(drawn.randrange(1000), 40) for _ in range(10)]
        there = [Running(engine, one) for one in requests]
        for _ in range(min(4, count - done)):
            time.sleep(drawn.uniform(0.0, 0.05))
            alive = [one for one in engine.replicas() if one.state == "running"]
            if alive:
                victim = drawn.choice(alive)
                number = signal.SIGSTOP if drawn.random() < 0.1 else signal.SIGKILL
                try:
                    os.kill(victim.pid, number)
                except ProcessLookupError:
                    continue
                done += 1
        for mine, its in zip(requests, there, strict=True):
            assert its.finish().bits == Running(here.engine, mine).finish().bits
    until(lambda: engine.load() == (0, 0))


def test_requests_go_on_elsewhere_with_the_same_bytes(cluster: Start, here: LoadedModel) -> None:
    faults(cluster(replicas=3, max=3, hang_s=1.0), here, 20, seed=1)


@pytest.mark.soak
def test_two_hundred_faults(cluster: Start, here: LoadedModel) -> None:
    faults(cluster(replicas=3, max=3, hang_s=1.0), here, 200, seed=2)


def test_a_stopped_replica_is_given_up(cluster: Start, here: LoadedModel) -> None:
    engine = cluster(replicas=2, max=2, hang_s=1.0)
    running(engine, 2)
    requests = [request(seed, 60) for seed in range(6)]
    there = [Running(engine, one) for one in requests]
    stopped = engine.replicas()[0].pid
    os.kill(stopped, signal.SIGSTOP)
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    until(lambda: stopped not in [one.pid for one in engine.replicas()])
    running(engine, 2)


def test_replaced_replicas_fail_no_request(cluster: Start, here: LoadedModel) -> None:
    engine = cluster(replicas=2, max=2)
    running(engine, 2)
    old = {one.pid for one in engine.replicas()}
    requests = [request(seed, 100) for seed in range(8)]
    there = [Running(engine, one) for one in requests]
    assert engine.replace() == 2
    there += [Running(engine, one) for one in requests]
    for mine, its in zip([*requests, *requests], there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    until(lambda: old.isdisjoint(one.pid for one in engine.replicas()))
    running(engine, 2)
    assert engine.status().restarts == 0


def test_a_drained_replica_is_replaced_where_it_is_needed(cluster: Start) -> None:
    engine = cluster(replicas=2, max=2)
    running(engine, 2)
    before = engine.replicas()[0]
    engine.drain(before.replica)
    until(lambda: before.pid not in [one.pid for one in engine.replicas()])
    running(engine, 2)
    with pytest.raises(InvalidRequest, match="there is no replica 9: there are"):
        engine.drain(9)


def test_an_idle_model_has_no_process_and_wakes(cluster: Start, here: LoadedModel) -> None:
    engine = cluster(replicas=1, min=0, max=3, idle_s=0.3)
    until(lambda: not engine.replicas())
    assert engine.status().state == "running" and engine.status().alive
    requests = [request(seed, 60) for seed in range(30)]
    there = [Running(engine, one) for one in requests]
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max(most, len(engine.replicas()))
        return most > 1 or engine.load() == (0, 0)

    until(watch)
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    assert most > 1, "more requests than places need more replicas"
    until(lambda: not engine.replicas())


def test_a_cancelled_request_ends_and_closing_fails_the_rest(cluster: Start) -> None:
    engine = cluster(replicas=2, max=2)
    one, other = Running(engine, request(1, 400)), Running(engine, request(2, 400))
    one.ticket.cancel()
    assert isinstance(one.finish(), Outcome)
    engine.close()
    with pytest.raises(EngineStopped):
        engine.submit(request(), lambda events: None)
    (end,) = other.finish().terminal
    assert isinstance(end, RequestFailed) and isinstance(end.error, EngineStopped)


def test_other_weights_are_refused_until_replicas_are_replaced(
    cluster: Start, folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    engine = cluster(own, replicas=2, max=2)
    running(engine, 2)
    os.utime(next(own.glob("*.safetensors")), (1, 1))
    os.kill(engine.replicas()[0].pid, signal.SIGKILL)
    until(lambda: engine.refused is not None)
    assert "headrace cluster replace" in (engine.refused or "")
    assert len(engine.replicas()) == 1
    Running(engine, request()).finish()
    engine.replace()
    running(engine, 2)


def test_replicas_stay_where_new_ones_do_not_start(cluster: Start, folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    engine = cluster(own, replicas=2, max=2)
    running(engine, 2)
    before = [one.pid for one in engine.replicas()]
    config = own / "config.json"
    config.write_text(config.read_text().replace('"hidden_size"', '"hidden_size_of_another"'))
    with pytest.raises(EngineStopped, match="0 of 2 are replaced"):
        engine.replace()
    assert [one.pid for one in engine.replicas() if one.state == "running"] == before
    Running(engine, request()).finish()
    os.kill(before[0], signal.SIGKILL)
    until(lambda: "headrace cluster replace" in (engine.refused or ""))  # the new files are not accepted
