"""An engine in a worker process gives the same results as in this process, whatever happens to the worker."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.engine.scaling.options import Ranking, Scaling, Vote
from headrace.errors import DeadlineExceeded, EngineStopped, HeadraceError, InvalidRequest, Overloaded
from headrace.grammar.constraint import Constraint, GrammarError, schema_constraint
from headrace.sampling.params import SamplingParams
from headrace.workers import engine_client as remote_engine
from headrace.workers import step_watch
from headrace.workers.engine_client import RemoteEngineClient
from headrace.workers.protocol import Submit, ToWorker
from stopped import stop
from tiny import Outcome, Running


def request(seed: int | None = 3, tokens: int = 12, **more: Any) -> EngineRequest:
    params = SamplingParams(seed=seed, max_tokens=tokens, n=2, logprobs=2, ignore_eos=True)
    return EngineRequest(prompt=(5, 6, 7 + (seed or 0) % 20), params=params, **more)


def engine_of(model: LoadedModel) -> RemoteEngineClient:
    assert isinstance(model.engine, RemoteEngineClient)
    return model.engine


def kill(model: LoadedModel, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(engine_of(model).worker_pid, number)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that has no notification."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_worker_gives_the_bits_of_a_local_engine(remote: LoadedModel, here: LoadedModel) -> None:
    requests = [request(seed) for seed in range(8)]
    there = [Running(remote.engine, one) for one in requests]
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    assert remote.defaults == here.defaults
    assert (remote.context_length, remote.name) == (here.context_length, "tiny")
    assert remote.engine.limits == here.engine.limits
    status = remote.engine.status()
    assert (status.running, status.waiting, status.state, status.restarts) == (0, 0, "running", 0)
    assert status.available_pages == status.page_count


def test_votes_and_budgets_reach_the_worker(remote: LoadedModel, here: LoadedModel) -> None:
    params = SamplingParams(seed=5, max_tokens=30, n=6, stop=("0", "1", "%"))
    for scaling in (
        Scaling(vote=Vote("regex", "(.)$")),
        Scaling(rank=Ranking("sum_logprob", 2)),
        Scaling(max_total_tokens=41),
    ):
        one = EngineRequest(prompt=(5, 6, 7), params=params, scaling=scaling)
        mine, its = Running(here.engine, one).finish(), Running(remote.engine, one).finish()
        assert mine.verdicts and its.verdicts == mine.verdicts
        assert its.bits == mine.bits and its.done.usage == mine.done.usage
    with pytest.raises(InvalidRequest, match="cannot be called in a worker"):
        function = Scaling(vote=Vote("function", function=str.lower))
        remote.engine.submit(replace(request(), scaling=function), lambda events: None)


def test_validation_errors_equal_those_of_a_local_engine(remote: LoadedModel, here: LoadedModel) -> None:
    wrong = [
        EngineRequest(prompt=()),
        EngineRequest(prompt=(10**6,)),
        EngineRequest(prompt=(5,) * 10_000),
        replace(request(), deadline_s=-1.0),
        replace(request(), constraint=Constraint("regex", "(", param="regex")),
    ]
    for one in wrong:
        errors: list[HeadraceError] = []
        for model in (here, remote):
            with pytest.raises(HeadraceError) as caught:
                model.engine.submit(one, lambda events: None)
            errors.append(caught.value)
        assert type(errors[0]) is type(errors[1])
        assert errors[0].message == errors[1].message
        assert errors[0].param == errors[1].param
    running = Running(remote.engine, request(request_id="mine"))
    with pytest.raises(InvalidRequest, match="in use"):
        remote.engine.submit(request(request_id="mine"), lambda events: None)
    running.finish()
    with pytest.raises(GrammarError):
        remote.engine.submit(wrong[-1], lambda events: None)


def test_a_grammar_holds_in_a_worker(remote: LoadedModel) -> None:
    limited = replace(request(tokens=4), constraint=Constraint("regex", "[ab]{4}"))
    assert set(Running(remote.engine, limited).finish().text[0]) <= {"a", "b"}


def slow_to_compile(number: int) -> Constraint:
    """What takes a second of compiling, and is refused then."""
    patterns = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{length}}}"} for length in range(20)]
    return schema_constraint({"allOf": patterns, "title": str(number)})


def test_a_grammar_whose_worker_dies_is_compiled_again(remote: LoadedModel) -> None:
    compiled = remote.engine.submit_later(
        replace(request(), constraint=slow_to_compile(0)), lambda events: None
    )
    limited = replace(request(tokens=4), constraint=Constraint("regex", "[ab]{4}"))
    text: list[EngineEvent] = []
    waiting = remote.engine.submit_later(limited, text.extend)
    time.sleep(0.3)
    assert not compiled.done()
    kill(remote)
    with pytest.raises(GrammarError, match="more than 1 s"):
        compiled.result(30)
    waiting.result(30)
    until(lambda: bool(text) and isinstance(text[-1], RequestFinished))
    assert remote.engine.status().restarts == 1
    assert remote.engine.status().waiting == 0


def test_a_grammar_that_ends_workers_fails(remote: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "MAX_REPLAYS", 1)
    compiled = remote.engine.submit_later(
        replace(request(), constraint=slow_to_compile(0)), lambda events: None
    )
    time.sleep(0.1)
    kill(remote)
    until(lambda: remote.engine.status().restarts == 1)
    assert not compiled.done()
    kill(remote)
    with pytest.raises(EngineStopped, match="send it again"):
        compiled.result(20)
    until(lambda: remote.engine.status().restarts == 2)
    limited = replace(request(tokens=4), constraint=Constraint("regex", "[ab]{4}"))
    assert set(Running(remote.engine, limited).finish().text[0]) <= {"a", "b"}


def test_what_is_cancelled_is_not_compiled(remote: LoadedModel) -> None:
    events: list[object] = []
    waiting = [
        remote.engine.submit_later(replace(request(), constraint=slow_to_compile(number)), events.append)
        for number in range(1, 30)
    ]
    assert all(one.cancel() for one in waiting)
    assert remote.engine.status().waiting == 0
    limited = replace(request(tokens=4), constraint=Constraint("regex", "[cd]{4}"))
    assert set(Running(remote.engine, limited).finish().text[0]) <= {"c", "d"}
    with pytest.raises(GrammarError, match="more than 1 s"):  # the compiler is free
        remote.engine.submit_later(replace(request(), constraint=slow_to_compile(99)), events.append).result(
            20
        )
    assert not events


def test_a_full_queue_is_overloaded(remote: LoadedModel) -> None:
    stop(engine_of(remote).worker_pid)
    most = remote.engine.limits.max_choices // 2
    tickets = [remote.engine.submit(request(tokens=1), lambda events: None) for _ in range(most)]
    with pytest.raises(Overloaded, match="at most"):
        remote.engine.submit(request(), lambda events: None)
    for ticket in tickets:
        ticket.cancel()
    kill(remote)
    until(lambda: remote.engine.status().waiting == 0)


def test_events_that_come_at_once_are_not_lost(
    remote: LoadedModel, here: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker may answer before the thread that has sent the request goes on."""
    worker = engine_of(remote)._worker  # pyright: ignore[reportPrivateUsage]
    assert worker is not None
    put = worker.put

    def slow_put(message: ToWorker) -> None:
        put(message)
        if isinstance(message, Submit):
            time.sleep(0.3)

    monkeypatch.setattr(worker, "put", slow_put)
    assert Running(remote.engine, request()).finish().bits == Running(here.engine, request()).finish().bits


def test_unanswered_requests_are_replayed_to_the_same_bytes(remote: LoadedModel, here: LoadedModel) -> None:
    stop(engine_of(remote).worker_pid)
    requests = [request(seed) for seed in range(6)]
    there = [Running(remote.engine, one) for one in requests]
    free = Running(remote.engine, request(None))  # draws its own seed, once
    late = Running(remote.engine, request(deadline_s=1e-6))
    left = Running(remote.engine, request())
    left.ticket.cancel()
    kill(remote)
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    seed = free.finish().done.seed
    assert free.outcome.bits == Running(here.engine, free_params(seed)).finish().bits
    assert isinstance(failure(late.finish()), DeadlineExceeded)
    assert {end.reason for end in left.finish().ends.values()} == {"cancelled"}
    status = remote.engine.status()
    assert (status.restarts, status.state) == (1, "running")


def test_a_paused_request_resumes_where_it_was(remote: LoadedModel, here: LoadedModel) -> None:
    long = replace(request(), params=replace(request().params, max_tokens=400))
    running = Running(remote.engine, long)
    running.next()
    running.ticket.pause(True)
    until(lambda: remote.engine.status().running == 0)
    assert not running.outcome.terminal
    other = request(4)
    assert Running(remote.engine, other).finish().bits == Running(here.engine, other).finish().bits
    running.ticket.pause(False)
    assert running.finish().bits == Running(here.engine, long).finish().bits


def test_a_worker_that_makes_no_step_is_killed(
    remote: LoadedModel, here: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_watch, "LOOK_S", 0.1)
    monkeypatch.setattr(step_watch, "MIN_PATIENCE_S", 3.0)
    long = request(tokens=400)
    answered = Running(remote.engine, long)
    answered.next()
    stop(engine_of(remote).worker_pid)
    waiting = Running(remote.engine, request())
    assert answered.finish().bits == Running(here.engine, long).finish().bits
    assert waiting.finish().bits == Running(here.engine, request()).finish().bits
    assert remote.engine.status().restarts == 1


def test_a_worker_that_compiles_for_long_is_not_killed(
    remote: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_watch, "LOOK_S", 0.1)
    monkeypatch.setattr(step_watch, "MIN_PATIENCE_S", 1.0)
    time.sleep(1.0)  # the watcher's next look is one of those
    slow = [replace(request(), constraint=slow_to_compile(number)) for number in (201, 202)]
    compiling = [remote.engine.submit_later(one, lambda events: None) for one in slow]
    assert remote.engine.status().waiting > 0
    for one in compiling:
        with pytest.raises(GrammarError, match="more than 1 s"):
            one.result(30)
    assert remote.engine.status().restarts == 0


def test_a_worker_that_stops_while_it_compiles_is_killed(
    remote: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_watch, "LOOK_S", 0.1)
    monkeypatch.setattr(step_watch, "MIN_PATIENCE_S", 2.0)
    stop(engine_of(remote).worker_pid)
    limited = replace(request(tokens=4), constraint=Constraint("regex", "[ab]{4}"))
    stopped = remote.engine.submit_later(limited, lambda events: None)
    stopped.result(30)
    assert remote.engine.status().restarts == 1
    assert set(Running(remote.engine, limited).finish().text[0]) <= {"a", "b"}


def free_params(seed: int) -> EngineRequest:
    plain = request(None)
    return replace(plain, params=replace(plain.params, seed=seed))


def failure(outcome: Outcome) -> HeadraceError:
    [event] = outcome.terminal
    assert isinstance(event, RequestFailed)
    return event.error


LONG = SamplingParams(seed=3, max_tokens=60, ignore_eos=True)
RESUMED = {
    "greedy": (replace(LONG, temperature=0.0), {}),
    "sampled": (replace(LONG, temperature=0.9, top_p=0.95), {}),
    "mirostat": (replace(LONG, mirostat=2), {}),
    "penalties": (replace(LONG, dry_multiplier=0.8, frequency_penalty=0.5, repetition_penalty=1.2), {}),
    "four choices with logprobs": (replace(LONG, n=4, logprobs=2, temperature=1.0), {}),
    "scores of the prompt": (replace(LONG, prompt_logprobs=1), {}),
    "stop strings": (replace(LONG, n=2, stop=("zzzz",), temperature=1.0), {}),
    "grammar": (replace(LONG, n=2, ignore_eos=False), {"constraint": Constraint("regex", "[ab]{40,60}")}),
    "a prediction": (LONG, {"prediction": (5, 6, 7, 8)}),
    "a vote": (replace(LONG, n=4, max_tokens=40), {"scaling": Scaling(vote=Vote(extract="last_number"))}),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_request_goes_on_where_it_was(remote: LoadedModel, here: LoadedModel, name: str) -> None:
    """Its reader sees a pause: nothing is lost, nothing comes twice, whatever the features."""
    params, more = RESUMED[name]
    asked = EngineRequest(prompt=(5, 6, 7), params=params, **more)
    # Grammars are compiled in a child of the engine's process, of which this one is to have none.
    expected = Running((here if asked.constraint is None else remote).engine, asked).finish()
    running = Running(remote.engine, asked)
    for deltas in (1, 3):
        for _ in range(deltas):
            if not running.outcome.terminal:
                running.next()
        restarts = remote.engine.status().restarts
        kill(remote)
        until(lambda restarts=restarts: remote.engine.status().restarts > restarts)  # type: ignore[misc]
    found = running.finish()
    assert found.bits == expected.bits
    assert (found.prompts, found.verdicts) == (expected.prompts, expected.verdicts)
    assert found.done.usage.completion_tokens == expected.done.usage.completion_tokens
    if not asked.prediction:  # what was tried of a client's own depends on how steps fell
        assert found.done.usage.accepted_prediction_tokens == 0
    timing = found.done.timing
    assert timing.first_token_s <= timing.total_s


def test_a_request_that_goes_on_differently_fails(remote: LoadedModel) -> None:
    """As where the model's files were replaced while its worker ran: no text is made of two."""
    running = Running(remote.engine, request(tokens=400))
    running.next()
    [item] = engine_of(remote)._open.values()
    item.output._choices[0].tokens[0] += 1
    stop(engine_of(remote).worker_pid)
    kill(remote)
    assert "another text" in failure(running.finish()).message
    assert Running(remote.engine, request()).finish().done
    until(lambda: remote.engine.status().running == 0)


def test_a_request_is_cancelled_while_the_next_worker_starts(remote: LoadedModel) -> None:
    running = Running(remote.engine, request(tokens=400))
    running.next()
    stop(engine_of(remote).worker_pid)
    kill(remote)
    until(lambda: remote.engine.status().state == "restarting")
    running.ticket.cancel()
    done = running.finish().done
    assert done.usage.completion_tokens == sum(map(len, running.outcome.tokens.values())) > 0
    assert {end.reason for end in running.outcome.ends.values()} == {"cancelled"}


def test_a_paused_request_stays_paused_in_the_next_worker(remote: LoadedModel, here: LoadedModel) -> None:
    long = request(tokens=400)
    running = Running(remote.engine, long)
    running.next()
    running.ticket.pause(True)
    until(lambda: remote.engine.status().running == 0)
    kill(remote)
    until(lambda: remote.engine.status().restarts == 1)
    assert Running(remote.engine, request(4)).finish().done
    assert remote.engine.status().running == 0
    running.ticket.pause(False)
    assert running.finish().bits == Running(here.engine, long).finish().bits


def restarting(remote: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Ends the worker, and keeps the next one away until the event is set."""
    engine, go_on = engine_of(remote), threading.Event()
    begin = engine._start
    monkeypatch.setattr(engine, "_start", lambda adopt: (go_on.wait(60), begin(adopt))[1])
    stop(engine.worker_pid)
    kill(remote)
    until(lambda: engine.status().state == "restarting")
    return go_on


def test_a_reader_that_catches_up_while_no_worker_runs_goes_on(
    remote: LoadedModel, here: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = request(tokens=400)
    running = Running(remote.engine, long)
    running.next()
    running.ticket.pause(True)
    until(lambda: remote.engine.status().running == 0)
    go_on = restarting(remote, monkeypatch)
    running.ticket.pause(False)
    go_on.set()
    assert running.finish().bits == Running(here.engine, long).finish().bits


def test_a_reader_that_falls_behind_while_no_worker_runs_is_waited_for(
    remote: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(remote.engine, request(tokens=400))
    running.next()
    go_on = restarting(remote, monkeypatch)
    running.ticket.pause(True)
    go_on.set()
    assert Running(remote.engine, request(4)).finish().done
    assert remote.engine.status().running == 0
    running.ticket.pause(False)
    assert running.finish().done


def test_deadlines_are_kept_while_no_worker_runs(
    remote: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Running(remote.engine, request(tokens=400, deadline_s=60.0))
    begun.next()
    go_on = restarting(remote, monkeypatch)
    late = Running(remote.engine, request(deadline_s=0.05))
    limited = replace(request(deadline_s=0.05), constraint=Constraint("regex", "[ab]{4}"))
    compiled = remote.engine.submit_later(limited, lambda events: None)
    assert isinstance(failure(late.finish()), DeadlineExceeded)
    with pytest.raises(DeadlineExceeded):
        compiled.result(60)
    assert remote.engine.status().state == "restarting"
    go_on.set()
    assert begun.finish().done


def test_cancel_while_a_worker_starts(remote: LoadedModel) -> None:
    kill(remote)
    until(lambda: remote.engine.status().state == "restarting")
    running = Running(remote.engine, request(deadline_s=60.0))
    running.ticket.cancel()
    assert running.finish().done.usage.completion_tokens == 0
    assert {end.reason for end in running.outcome.ends.values()} == {"cancelled"}


class Patient(Running):
    """A request that waits in the queue while workers die."""

    def next(self) -> None:
        for event in self._events.get(timeout=600):
            self.outcome.add(event)


@pytest.mark.parametrize(("kills", "streams"), [(5, 8), pytest.param(50, 200, marks=pytest.mark.soak)])
def test_killed_at_random_points_under_streams(
    remote: LoadedModel, here: LoadedModel, kills: int, streams: int
) -> None:
    """Each request has one terminal event and the right bytes, however often its worker died."""
    expected = {seed: Running(here.engine, request(seed, 40)).finish().bits for seed in range(16)}
    outcomes: list[tuple[int, Outcome]] = []
    over = threading.Event()

    def stream(worker: int) -> None:
        seed = worker % 16
        while not over.is_set():
            outcomes.append((seed, Patient(remote.engine, request(seed, 40)).finish()))
            seed = (seed + 5) % 16

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    points = random.Random(11)
    for number in range(kills):
        until(lambda done=number: remote.engine.status().restarts == done)
        seen = len(outcomes)
        time.sleep(points.uniform(0, 0.05))
        if number % 2:  # else a request may be taken for the cause
            until(lambda seen=seen: len(outcomes) > seen)
        kill(remote)
    until(lambda: remote.engine.status().restarts == kills)
    over.set()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    assert outcomes
    assert all(isinstance(one.terminal[0], RequestFinished) for _, one in outcomes)
    assert all(one.bits == expected[seed] for seed, one in outcomes)
    status = remote.engine.status()
    assert status.waiting == status.running == 0


def test_a_crash_loop_fails_with_its_cause(remote: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "FIRST_PAUSE_S", 0.001)
    starts: list[float] = []

    def start(adopt: object) -> object:
        starts.append(time.monotonic())
        raise EngineStopped("no memory for it")

    monkeypatch.setattr(remote.engine, "_start", start)
    stop(engine_of(remote).worker_pid)
    waiting = Running(remote.engine, request())
    kill(remote)
    error = failure(waiting.finish())
    assert "10 times" in error.message and "no memory for it" in error.message
    assert len(starts) == remote_engine.MAX_CRASHES - 1
    status = remote.engine.status()
    assert (status.state, status.alive, status.failure) == ("failed", False, error.message)
    with pytest.raises(EngineStopped, match="no memory"):
        remote.engine.submit(request(), lambda events: None)


def test_a_request_present_at_every_crash_fails(remote: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a request may be the cause of the crashes: it must not kill every future worker."""
    monkeypatch.setattr(remote_engine, "FIRST_PAUSE_S", 0.001)
    stop(engine_of(remote).worker_pid)
    running = Running(remote.engine, request())
    engine, deaths = engine_of(remote), 0
    put = engine._resume

    def resume_and_die(worker: object, ready: object) -> bool:
        nonlocal deaths
        deaths += 1
        stop(worker.pid)  # type: ignore[attr-defined]
        resumed = put(worker, ready)  # type: ignore[arg-type]
        if deaths <= remote_engine.MAX_REPLAYS:
            os.kill(worker.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return resumed

    monkeypatch.setattr(engine, "_resume", resume_and_die)
    kill(remote)
    assert isinstance(failure(running.finish()), EngineStopped)
    assert deaths == remote_engine.MAX_REPLAYS


def test_close_ends_the_process_and_fails_what_runs(start: Callable[[], LoadedModel]) -> None:
    model = start()
    running = Running(model.engine, request(tokens=50))
    pid = engine_of(model).worker_pid
    model.close()
    last = running.finish().terminal[0]
    assert isinstance(last, RequestFinished) or isinstance(last.error, EngineStopped)
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(EngineStopped):
        model.engine.submit(request(), lambda events: None)


PARENT = """
import sys, time
from headrace.loading.options import EngineOptions
from headrace.workers.worker_loader import WorkerLoader
from headrace.workers.model_spec import ModelSpec
launch = WorkerLoader(ModelSpec(name="tiny", model=sys.argv[1], options=EngineOptions(threads=1)))
launch.plan(None)
model = launch.load(lambda done, total: None)
print(model.engine.worker_pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_no_orphans_when_the_server_is_killed(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        parent.kill()
    until(lambda: _gone(worker))


def _gone(pid: int) -> bool:
    """True if it has ended, even if its new parent has not reaped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
