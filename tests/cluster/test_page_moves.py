"""KV pages go from one replica to another, and every answer has the bytes of one engine."""

from __future__ import annotations

import os
import queue
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from test_cluster_client import faults, running, until
from test_remote_replicas import launch

from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.cluster.remote_replica import RemoteReplicas
from headrace.cluster.replica_link import ReplicaLink
from headrace.cluster.router import RoutingChoice
from headrace.cluster.transfer import Transfer, Transfers
from headrace.config.cluster_settings import ClusterSettings, read_cluster
from headrace.engine.client import LoadedModel
from headrace.engine.engine import Engine
from headrace.engine.request import EngineRequest, PageMove, Timing, Usage
from headrace.engine.scheduler.moved_pages import MovedPages
from headrace.errors import UsageError
from headrace.executors.kv_layers import KvLayers, KvType
from headrace.grammar.constraint import Constraint
from headrace.kv.pages import PAGE_TOKENS, Pages
from headrace.kv.prefix_tree import PrefixTree
from headrace.loading.loader import load_model
from headrace.loading.model_record import ModelRecord, write_record
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.telemetry.engine_nodes import engine_nodes
from headrace.telemetry.explain_node import EngineTrace
from headrace.workers.model_spec import ModelSpec
from headrace.workers.page_mover import PageMover, page_class
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import (
    BeginImport,
    Cancel,
    EndImport,
    ExportEnded,
    ExportPages,
    HotTexts,
    ImportEnded,
    ImportPart,
    ListHotTexts,
    ModelReady,
    PagePart,
    PageReport,
    PagesExported,
    PartTaken,
)
from headrace.workers.spawn import Spawner
from tiny import Running, tiny_model

Start = Callable[..., ClusterClient]
ROOT = (True, "", "")
PROMPT = tuple(5 + number * 7 % 60 for number in range(200))


def long_request(seed: int, tokens: int = 12) -> EngineRequest:
    """Sampled or greedy, with one or more choices, logprobs, penalties or a grammar, or without the cache."""
    params = SamplingParams(
        seed=seed,
        max_tokens=tokens,
        temperature=0.0 if seed % 4 == 0 else 0.9,
        n=1 + seed % 3,
        logprobs=2 if seed % 2 else None,
        repetition_penalty=1.1 if seed % 5 == 1 else 1.0,
        ignore_eos=True,
    )
    constraint = Constraint("regex", f"[ab]{{{tokens}}}") if seed % 5 == 0 else None
    prompt = (*PROMPT[: 90 + seed % 4 * 30], 6 + seed % 20, 7 + seed % 20)
    return EngineRequest(prompt=prompt, params=params, constraint=constraint, cache=seed % 7 != 3)


class Mover:
    """An engine, and what it reports of pages."""

    def __init__(self, model: LoadedModel) -> None:
        assert isinstance(model.engine, Engine)
        self.model, self.engine = model, model.engine
        self.page_class = page_class(self.engine, model.plan.weight_format)
        self.reports: queue.SimpleQueue[PageReport] = queue.SimpleQueue()
        self.mover = PageMover(self.engine, model.plan.weight_format, self.reports.put)

    def next(self) -> PageReport:
        return self.reports.get(timeout=60)

    def run(self, request: EngineRequest) -> Running:
        running = Running(self.engine, request)
        running.finish()
        return running


def move(
    source: Mover, target: Mover, *, shares: bool, change: Callable[[PagePart], PagePart]
) -> ImportEnded:
    """All pages of PROMPT."""
    target.mover.take(BeginImport(1, ROOT, PROMPT, source.page_class))
    source.mover.take(ExportPages(1, ROOT, PROMPT, 0, "", False, shares))
    while not isinstance(report := source.next(), ExportEnded):
        assert isinstance(report, PagesExported)
        target.mover.take(ImportPart(1, change(report.part)))
        if isinstance(ended := target.next(), ImportEnded):
            return ended
        assert ended == PartTaken(1)
        source.mover.take(PartTaken(1))
    assert report.problem == ""
    target.mover.take(EndImport(1))
    ended = target.next()
    assert isinstance(ended, ImportEnded)
    return ended


@pytest.fixture
def engines(folder: Path) -> Iterator[Callable[..., Mover]]:
    """Engines of this process, closed at the end of the test."""
    movers: list[Mover] = []

    def start(path: Path = folder, **options: Any) -> Mover:
        movers.append(Mover(load_model(str(path), EngineOptions(threads=1, max_num_seqs=4, **options))))
        return movers[-1]

    yield start
    for mover in movers:
        mover.mover.close()
        mover.model.close()


GREEDY = EngineRequest(prompt=PROMPT, params=SamplingParams(max_tokens=8, temperature=0.0, logprobs=3))


@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "bytes"])
@pytest.mark.parametrize("kv", ["f32", "bf16", "int8", "k8v4", "int4", "int3", "mixed"])
def test_pages_of_every_type(engines: Callable[..., Mover], tmp_path: Path, kv: KvType, shares: bool) -> None:
    path = tiny_model(tmp_path, "qwen3")  # its heads fit 3 bits
    write_record(path, ModelRecord(kv=KvLayers(bits=((3, 4), (8, 8)))))
    source, target = engines(path, kv_cache_dtype=kv), engines(path, kv_cache_dtype=kv)
    cold = source.run(GREEDY).outcome
    assert move(source, target, shares=shares, change=lambda part: part) == ImportEnded(1, 192, "")
    warm = target.run(GREEDY).outcome
    assert warm.bits == cold.bits
    assert (cold.done.usage.cached_tokens, warm.done.usage.cached_tokens) == (0, 192)


def test_what_is_damaged_is_computed(engines: Callable[..., Mover]) -> None:
    source, target = engines(), engines()
    cold = source.run(GREEDY).outcome

    def damaged(part: PagePart) -> PagePart:
        data = bytearray(part.data)
        data[len(data) // 2] ^= 1
        return replace(part, data=memoryview(data))

    ended = move(source, target, shares=False, change=damaged)
    assert ended.tokens == 0 and "checksum" in ended.problem
    again = target.run(GREEDY).outcome
    assert again.bits == cold.bits and again.done.usage.cached_tokens == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda part: replace(part, place=(part.place[0], part.place[1], -4096)),
        lambda part: replace(part, place=(part.place[0], 1 << 20, 0)),
        lambda part: replace(part, place=(part.place[0], part.place[1], 1 << 40)),
        lambda part: replace(part, count=1 << 60),
        lambda part: replace(part, count=0),
        lambda part: replace(part, first=5),
    ],
    ids=["before", "no file", "beyond", "many", "none", "gap"],
)
def test_what_is_no_part_is_left_out(
    engines: Callable[..., Mover], change: Callable[[PagePart], PagePart]
) -> None:
    source, target = engines(), engines()
    cold = source.run(GREEDY).outcome
    ended = move(source, target, shares=True, change=change)
    assert ended.tokens == 0 and ended.problem
    assert target.run(GREEDY).outcome.bits == cold.bits
    status = target.engine.status()
    assert status.available_pages == status.page_count, "no page is lost"


def test_pages_of_another_class_are_refused(engines: Callable[..., Mover]) -> None:
    source, target = engines(kv_cache_dtype="bf16"), engines(kv_cache_dtype="int8")
    source.run(GREEDY)
    ended = move(source, target, shares=False, change=lambda part: part)
    assert ended.tokens == 0 and "pages of the class" in ended.problem


def test_recurrent_states_are_not_moved(engines: Callable[..., Mover], tmp_path: Path) -> None:
    source = engines(tiny_model(tmp_path, "mamba2"))
    assert source.page_class == ""
    source.mover.take(ExportPages(1, ROOT, PROMPT, 0, "", False, False))
    assert source.next() == ExportEnded(1, "this model keeps what is not in pages")


def test_the_most_recently_used_texts(engines: Callable[..., Mover]) -> None:
    source = engines()
    one = source.engine.page_moves.memory
    assert one is not None
    for prompt in (PROMPT[:64], PROMPT, PROMPT[:100] + (9,) * 64):
        source.run(EngineRequest(prompt=(*prompt, 8), params=SamplingParams(max_tokens=1)))
    own = EngineRequest(prompt=(*PROMPT[::-1], 8), params=SamplingParams(max_tokens=1), cache_salt="k")
    source.run(own)

    def hot(pages: int) -> list[tuple[tuple[bool, str, str], int, tuple[int, ...]]]:
        source.mover.take(ListHotTexts(1, pages * one.page_bytes))
        report = source.next()
        assert isinstance(report, HotTexts)
        return report.texts

    assert hot(0) == []
    assert hot(3) == [((True, "k", ""), 0, (*PROMPT[::-1][:48], 0))]
    every = hot(1000)
    assert {(root[1], tokens[:-1]) for root, _, tokens in every} == {
        ("k", PROMPT[::-1][:192]),
        ("", PROMPT[:192]),
        ("", (*PROMPT[:100], *(9,) * 60)),
    }
    assert sorted(shared for _, shared, _ in every) == [0, 0, 6], "the common beginning goes once"


def test_prompts_are_read_elsewhere(cluster: Start, here: LoadedModel) -> None:
    engine = cluster(replicas=2, prefill=1, decode=1, disaggregation="always")
    running(engine, 2)
    requests = [long_request(seed) for seed in range(20)]
    there = [Running(engine, one) for one in requests]
    for mine, its in zip(requests, there, strict=True):
        assert its.finish().bits == Running(here.engine, mine).finish().bits
    roles = {one.role: one for one in engine.replicas()}
    assert set(roles) == {"prefill", "decode"} and roles["prefill"].steps
    moves = [one for its in there for one in its.outcome.done.moves]
    assert moves and all(one.target == roles["decode"].replica and not one.problem for one in moves)
    assert all(one.nbytes and one.tokens >= 64 for one in moves)
    timings = [its.outcome.done.timing for its in there]
    assert all(0 < one.first_token_s <= one.total_s for one in timings)
    until(lambda: engine.load() == (0, 0))
    assert sum(one.requests for one in engine.replicas()) == 0


def test_explain_shows_what_moved() -> None:
    usage, timing = Usage(200, 5, 192), Timing(0.01, 0.9, 1.0)
    moved = PageMove("prompt read by replica 0", 0.1, 0.4, 0.02, 192, 4096, 0, 1, "why")
    nodes = engine_nodes([EngineTrace(0.0, 1.0, usage, timing, (), moves=(moved,))], 0.0)
    assert [one.name for one in nodes] == ["other", "move pages", "queue", "other"]
    assert nodes[1].detail == {
        "why": "prompt read by replica 0",
        "tokens": 192,
        "bytes": 4096,
        "from": 0,
        "to": 1,
        "after_last_page_s": 0.02,
        "problem": "why",
    }
    assert sum(one.measured_s for one in nodes) == pytest.approx(1.0)


def test_pages_on_their_way_leave_room_for_what_runs() -> None:
    pages = Pages(64)
    tree = PrefixTree(pages)
    moved = MovedPages(pages, tree, PAGE_TOKENS, lambda: 4, lambda: None)
    tokens = tuple(range(16 * 100 + 1))
    first, second = moved.reserve(ROOT, tokens), moved.reserve(ROOT, tokens)
    assert (len(first.pages), len(second.pages), pages.free) == (30, 15, 19)
    assert moved.commit(first, 10) == 160 and moved.commit(second, 15) == 240
    assert pages.free + tree.evictable == 64 and tree.cached == 15
    assert moved.reserve(ROOT, tokens).first == 15


def test_short_and_known_prompts_stay(cluster: Start) -> None:
    engine = cluster(replicas=2, prefill=1, decode=1, disaggregation="always")
    running(engine, 2)
    params = SamplingParams(seed=1, max_tokens=2)
    short = Running(engine, EngineRequest(prompt=PROMPT[:60], params=params)).finish()
    assert short.done.moves == ()
    first = Running(engine, EngineRequest(prompt=PROMPT, params=params)).finish()
    assert len(first.done.moves) == 1 and first.done.usage.cached_tokens == 192
    again = Running(engine, EngineRequest(prompt=(*PROMPT, 9), params=params)).finish()
    assert again.done.moves == () and again.done.usage.cached_tokens >= 192


def test_an_idle_replica_reads_its_prompts_itself(cluster: Start) -> None:
    engine = cluster(replicas=2, prefill=1, decode=1)
    running(engine, 2)
    found = Running(
        engine, EngineRequest(prompt=PROMPT, params=SamplingParams(seed=1, max_tokens=2))
    ).finish()
    (told,) = found.done.moves
    assert (told.nbytes, told.tokens, told.source) == (0, 0, told.target)
    assert "where 0 streams would wait" in told.reason
    assert {one.role: one.steps for one in engine.replicas()}["prefill"] == 0


def test_faults_while_prompts_are_read_elsewhere(cluster: Start, here: LoadedModel) -> None:
    engine = cluster(replicas=4, prefill=2, decode=2, hang_s=1.0, disaggregation="always")
    running(engine, 4)
    drawn = random.Random(5)
    done = 0
    while done < 8:
        requests = [long_request(drawn.randrange(1000), 30) for _ in range(8)]
        there = [Running(engine, one) for one in requests]
        for _ in range(2):
            time.sleep(drawn.uniform(0.0, 0.05))
            victim = drawn.choice(engine.replicas() or [None])
            if victim is not None:
                os.kill(victim.pid, signal.SIGKILL)
                done += 1
        for mine, its in zip(requests, there, strict=True):
            assert its.finish().bits == Running(here.engine, mine).finish().bits
    running(engine, 4)
    assert sorted(one.role for one in engine.replicas()) == ["decode", "decode", "prefill", "prefill"]


def test_a_drained_replica_sends_the_pages_of_its_requests(cluster: Start, here: LoadedModel) -> None:
    """Until one of its requests had not ended before it was asked for their pages."""
    engine = cluster(replicas=2, max=2, drain_s=0.0, warm=1)
    # One choice each: all run at once.
    requests = [replace(long_request(seed, 300), constraint=None) for seed in range(0, 24, 3)]
    alone = [Running(here.engine, one).finish().bits for one in requests]
    moves: list[PageMove] = []
    for _ in range(20):
        running(engine, 2)
        there = [Running(engine, one) for one in requests]
        there[0].next()
        before = engine.replicas()[0]
        os.kill(before.pid, signal.SIGSTOP)
        engine.drain(before.replica)
        time.sleep(0.3)  # time to ask for pages
        os.kill(before.pid, signal.SIGCONT)
        until(lambda pid=before.pid: pid not in [one.pid for one in engine.replicas()])
        assert [one.finish().bits for one in there] == alone, [one.outcome.terminal for one in there]
        moves = [one for its in there for one in its.outcome.done.moves]
        assert all(one.source == before.replica for one in moves)
        if any(one.tokens >= 80 for one in moves):
            break
    assert any(one.tokens >= 80 for one in moves)
    assert engine.status().restarts == 0


def test_what_comes_from_a_replica_that_a_request_has_left_is_dropped(
    cluster: Start, here: LoadedModel
) -> None:
    """Events that wait for the lock while another thread moves their request belong to the run before."""
    engine = cluster(replicas=2, max=2)
    running(engine, 2)
    request = replace(long_request(0, 400), constraint=None)
    moved = False
    while not moved:
        its = Running(engine, request)
        its.next()
        with engine._lock:
            for placed in engine._open.values():
                assert placed.link is not None
                time.sleep(0.05)  # its next events have come
                placed.link.put(Cancel(placed.routed.id))
                other = RoutingChoice(1 - placed.link.number, 0, 0.0)
                engine.place(placed, placed.item.next_run(), other)
                moved = True
        assert its.finish().bits == Running(here.engine, request).finish().bits


def test_a_new_replica_begins_with_the_pages_of_another(cluster: Start) -> None:
    engine = cluster(replicas=1, max=2, policy="round-robin")
    running(engine, 1)
    params = SamplingParams(seed=1, max_tokens=2)
    assert Running(engine, EngineRequest(prompt=PROMPT, params=params)).finish().done.usage.cached_tokens == 0
    engine.replace()
    old = engine.replicas()[0].pid
    until(lambda: old not in [one.pid for one in engine.replicas()] and len(engine.replicas()) == 1)

    def cached() -> bool:
        again = EngineRequest(prompt=(*PROMPT, 9), params=params)
        return Running(engine, again).finish().done.usage.cached_tokens >= 192

    until(cached)


class ByTcp(ClusterLoader):
    """Replicas of this machine that connect by TCP."""

    def _maker(self, path: Path) -> Callable[[], WorkerProcess]:
        return RemoteReplicas(launch, path, host="127.0.0.1", spawner=self._process.spawner)


def test_pages_go_by_tcp(folder: Path, here: LoadedModel) -> None:
    spawner = Spawner()
    options = EngineOptions(threads=1, max_num_seqs=4)
    settings = ClusterSettings(replicas=2, prefill=1, decode=1, launcher="ray", disaggregation="always")
    loader = ByTcp(ModelSpec(name="tiny", model=str(folder), options=options), settings, spawner=spawner)
    loader.plan(None)
    model = loader.load(lambda done, total: None)
    try:
        engine = model.engine
        assert isinstance(engine, ClusterClient)
        running(engine, 2)
        requests = [long_request(seed) for seed in range(6)]
        there = [Running(engine, one) for one in requests]
        for mine, its in zip(requests, there, strict=True):
            assert its.finish().bits == Running(here.engine, mine).finish().bits
        assert any(its.outcome.done.moves for its in there)
    finally:
        model.close()
        spawner.close()


@pytest.mark.soak
def test_two_hundred_faults_of_roles(cluster: Start, here: LoadedModel) -> None:
    faults(cluster(replicas=4, prefill=2, decode=2, hang_s=1.0, disaggregation="always"), here, 200, seed=3)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"prefill": 1}, "give both"),
        ({"decode": 1}, "give both"),
        ({"prefill": 1, "decode": 1, "replicas": 3}, "cluster.replicas is 3"),
        ({"prefill": 1, "decode": 1, "min": 0}, "cluster.min is 0"),
        ({"prefill": 1, "decode": 1, "max": 4}, "cluster.max is 4"),
        ({"prefill": 200, "decode": 100}, "256 in all"),
        ({"prefill": 1, "decode": 1, "hang_s": 10**400}, "is not a number from 0.5 to 3600"),
    ],
)
def test_roles_that_do_not_add_up_are_refused(table: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_cluster(table)


class _Hears:
    """A replica that is told things."""

    def __init__(self, number: int, ready: ModelReady) -> None:
        self.number, self.ready, self.heard = number, ready, list[object]()

    def put(self, message: object) -> None:
        self.heard.append(message)


def test_a_replica_elsewhere_cannot_name_memory_of_this_machine(cluster: Start) -> None:
    """Its numbers of a process and a file would be those of any process here."""
    [link] = cluster(replicas=1, max=1)._pool.links
    source, target = (cast("ReplicaLink", _Hears(number, link.ready)) for number in (1, 2))
    part = PagePart(0, 1, 0, (os.getpid(), 0, 0), memoryview(b""))
    for shares in (True, False):
        ended: list[Transfer] = []
        transfers = Transfers(shares=shares)
        found = transfers.begin(source, target, (True, "", ""), (1,) * 32, ended.append)
        assert found is not None
        transfers.took(source, PagesExported(found.number, part))
        passed = [one for one in cast("_Hears", target).heard if isinstance(one, ImportPart)]
        assert len(passed) == 1, "the one of this machine"
        assert [one.problem for one in ended] == (
            [] if shares else ["its pages are in memory of another machine"]
        )


def test_roles_give_the_number_of_replicas() -> None:
    found = read_cluster({"prefill": 2, "decode": 1})
    assert found is not None and (found.replicas, found.fewest, found.most) == (3, 3, 3)
