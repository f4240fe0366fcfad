"""The two loops take turns, whatever becomes of a step; texts and vectors do not depend on it."""

from __future__ import annotations

import itertools
import math
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace import _native
from headrace.engine.client import LoadedModel
from headrace.engine.engine import Engine
from headrace.engine.request import (
    EmbedParams,
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    Targets,
)
from headrace.engine.turns import BATCH_PRIORITY, SharedTurns, Tier, TurnAsk
from headrace.errors import TargetUnreachable
from headrace.loading.loader import start
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.sampling.params import SamplingParams
from tiny import Running, tiny_model

PROMPTS = [tuple(range(3 + i, 3 + i + n)) for i, n in enumerate((4, 60, 31, 17))]


class FakeTurns:
    """Counts turns, and is contended where it is told so."""

    def __init__(self, *, contended: bool = False) -> None:
        self.contended, self.waiting, self.log = contended, False, list[object]()
        self.width = 0

    def attach(self, pool: _native.Pool) -> None:
        pass

    def join(self) -> None:
        self.log.append("join")

    def begin(self, ask: TurnAsk) -> float:
        self.log.append(ask)
        return 0.0

    def end(self, *, again: bool) -> None:
        self.log.append("end")

    def leave(self) -> None:
        self.log.append("leave")


class WidthTurns(FakeTurns):
    """Each turn has another number of cores."""

    def attach(self, pool: _native.Pool) -> None:
        self.pool, self.widths = pool, itertools.cycle([1, 3, 2])

    def begin(self, ask: TurnAsk) -> float:
        self.width = next(self.widths) % self.pool.threads
        self.pool.set_width(self.width or self.pool.threads)
        return super().begin(ask)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return (
        tiny_model(tmp_path_factory.mktemp("turns") / "decoder", "llama3"),
        tiny_model(tmp_path_factory.mktemp("turns") / "encoder", "encoders/bert"),
    )


def loaded(folder: Path, turns: FakeTurns | SharedTurns | None, **more: object) -> LoadedModel:
    options = EngineOptions(threads=1, **more)  # type: ignore[arg-type]
    return start(prepare(str(folder), options), options, turns=turns)


def generate(engine: Engine, *, priority: int = 0) -> list[tuple[object, ...]]:
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
    requests = [EngineRequest(prompt=prompt, params=params, priority=priority) for prompt in PROMPTS]
    return [running.finish().bits for running in [Running(engine, request) for request in requests]]


def embed(model: LoadedModel, count: int, *, priority: int = 0) -> list[bytes]:
    events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
    found: list[bytes] = []
    for index in range(count):
        text = PROMPTS[index % len(PROMPTS)]
        request = EngineRequest(prompt=text, embed=EmbedParams(), priority=priority)
        model.engine.submit(request, events.put)
        batch = events.get(timeout=60)
        assert isinstance(batch[-1], RequestFinished)
        found.append(batch[0].data)  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("contended", [False, True])
def test_each_step_is_a_turn(folders: tuple[Path, Path], contended: bool) -> None:
    for folder, work in zip(folders, ("generate", "embed"), strict=True):
        turns = FakeTurns(contended=contended)
        model = loaded(folder, turns, max_turn_ms=1.0)
        if work == "generate":
            assert isinstance(model.engine, Engine)
            generate(model.engine, priority=BATCH_PRIORITY)
        else:
            embed(model, 4, priority=BATCH_PRIORITY)
        model.close()
        assert (turns.log[0], turns.log[-1]) == ("join", "leave")
        asks, ends = turns.log[1:-1:2], turns.log[2:-1:2]
        assert asks and all(isinstance(ask, TurnAsk) for ask in asks)
        assert set(ends) == {"end"} and len(asks) == len(ends)
        assert asks[-1].tier is Tier.BATCH  # type: ignore[attr-defined]


@pytest.fixture
def beside(folders: tuple[Path, Path]) -> Iterator[tuple[LoadedModel, LoadedModel]]:
    arena = _native.Turns()
    models = [loaded(folder, SharedTurns(arena), max_turn_ms=1.0) for folder in folders]
    yield models[0], models[1]
    for model in models:
        model.close()


def test_outputs_are_those_of_a_model_alone(
    folders: tuple[Path, Path], beside: tuple[LoadedModel, LoadedModel]
) -> None:
    decoder, encoder = loaded(folders[0], None), loaded(folders[1], None)
    assert isinstance(decoder.engine, Engine)
    texts, vectors = generate(decoder.engine), embed(encoder, 40)
    decoder.close()
    encoder.close()
    found: list[list[bytes]] = []
    flood = threading.Thread(target=lambda: found.append(embed(beside[1], 40)))
    flood.start()
    assert isinstance(beside[0].engine, Engine)
    for _ in range(3):
        assert generate(beside[0].engine) == texts
    flood.join()
    assert found == [vectors]


@pytest.mark.parametrize("speculative", ["off", "auto"])
def test_outputs_do_not_depend_on_the_cores_of_a_turn(folders: tuple[Path, Path], speculative: str) -> None:
    found: list[object] = []
    for turns in (None, WidthTurns()):
        options = EngineOptions(threads=3, speculative=speculative)  # type: ignore[arg-type]
        decoder, encoder = (start(prepare(str(folder), options), options, turns=turns) for folder in folders)
        assert isinstance(decoder.engine, Engine)
        found.append((generate(decoder.engine), embed(encoder, 8)))
        for model in (decoder, encoder):
            model.close()
    assert found[0] == found[1]


def test_a_request_that_finds_the_loop_idle_asks_for_its_own_class(folders: tuple[Path, Path]) -> None:
    turns = FakeTurns()
    with closing(loaded(folders[0], turns)) as model:
        assert isinstance(model.engine, Engine)
        Running(
            model.engine, EngineRequest(prompt=PROMPTS[0], params=SamplingParams(max_tokens=2), priority=-1)
        ).finish()
    asks = [ask for ask in turns.log if isinstance(ask, TurnAsk)]
    assert asks[0].tier is Tier.INTERACTIVE and math.isfinite(asks[0].deadline_s)


def test_a_loop_that_waits_for_its_turn_says_so(folders: tuple[Path, Path]) -> None:
    turns = FakeTurns()
    for folder in folders:
        model = loaded(folder, turns)
        assert not model.engine.status().waits_for_turn
        turns.waiting = True
        assert model.engine.status() == replace(model.engine.status(), waits_for_turn=True)
        turns.waiting = False
        model.close()


def outcome(engine: Engine, tokens: int, slo: Targets | None = None) -> EngineEvent:
    """The last event of a prompt of so many tokens."""
    events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
    prompt = tuple(3 + index % 100 for index in range(tokens))
    params = SamplingParams(max_tokens=1)
    engine.submit(EngineRequest(prompt=prompt, params=params, cache=False, slo=slo), events.put)
    while not isinstance(last := events.get(timeout=60)[-1], RequestFinished | RequestFailed):
        pass
    return last


@pytest.mark.parametrize("policy", ["serve", "refuse"])
def test_a_request_that_cannot_make_its_target(folders: tuple[Path, Path], policy: str) -> None:
    slo = {"ttft_ms": 1.0}
    options = EngineOptions(threads=1, slo=slo, slo_policy=policy, max_batch_tokens=32)  # type: ignore[arg-type]
    with closing(start(prepare(str(folders[0]), options), options)) as model:
        assert isinstance(model.engine, Engine)
        for _ in range(2):  # nothing is known before
            assert isinstance(outcome(model.engine, 30), RequestFinished)
        target_s = 1e-6  # no machine makes that
        pacing = model.engine._pacing  # pyright: ignore[reportPrivateUsage]
        pacing.options = replace(pacing.options, ttft_s=target_s)
        last = outcome(model.engine, 60)
        if policy == "serve":
            assert isinstance(last, RequestFinished) and last.timing.late_s > target_s
        else:
            assert isinstance(last, RequestFailed) and isinstance(last.error, TargetUnreachable)
            assert re.search(r"predicted in [\d,.]+ ms, the target is [\d,.e-]+ ms", last.error.message)
            assert last.error.status == 429 and last.error.retry_after_s >= 0.1
        assert model.engine.status().waiting == 0
        own = outcome(model.engine, 60, Targets(ttft_s=1000.0))
        assert isinstance(own, RequestFinished) and own.timing.late_s == 0
        pacing.options = replace(pacing.options, ttft_s=None)
        own = outcome(model.engine, 60, Targets(ttft_s=target_s))
        assert isinstance(own, RequestFinished if policy == "serve" else RequestFailed)
