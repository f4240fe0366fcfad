"""`headrace bench speculative`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.bench import speculative
from headrace.bench.batch_run import Arrival, run_together
from headrace.bench.speculative import SpeculativeBenchConfig, bench_speculate
from headrace.engine.client import EngineClient
from headrace.engine.request import EngineRequest
from headrace.errors import UsageError
from headrace.loading.options import EngineOptions
from tiny import tiny_model


def test_a_cell_for_each_drafter_temperature_and_batch(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    order = SpeculativeBenchConfig(
        model=folder,
        prompts={"text": ["a1 a2 a1 a2", "b3"]},
        temperatures=[0.0, 1.0],
        batches=[1, 3],
        generate=20,
        pairs=2,
    )
    cells = list(bench_speculate(order, EngineOptions(speculative_model=folder)))
    assert [(cell.drafter, cell.temperature, cell.batch) for cell in cells] == [
        (drafter, temperature, batch)
        for temperature in (0.0, 1.0)
        for batch in (1, 3)
        for drafter in ("lookup", "model")
    ]
    for cell in cells:
        assert cell.speed_up.min <= cell.speed_up.median <= cell.speed_up.max
        assert cell.speed_up.min <= cell.job_speed_up <= cell.speed_up.max
        assert cell.tokens_per_step >= 0.99 and 0 <= cell.accepted <= 1
        assert cell.plain_tokens_per_s.min > 0


def test_an_empty_measurement_is_rejected(tmp_path: Path) -> None:
    order = SpeculativeBenchConfig(
        model=None, prompts={"text": ["a"]}, temperatures=[0.0], batches=[1], generate=4, pairs=0
    )
    with pytest.raises(UsageError, match="--pairs"):
        list(bench_speculate(order, EngineOptions()))


def test_an_answer_that_comes_in_one_piece_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(engine: EngineClient, requests: Sequence[EngineRequest]) -> Iterator[Arrival]:
        time.sleep(0.01)
        for arrival in list(run_together(engine, requests)):
            yield Arrival(arrival.index, time.monotonic(), arrival.tokens)

    monkeypatch.setattr(speculative, "run_together", at_once)
    order = SpeculativeBenchConfig(
        model=str(tiny_model(tmp_path)),
        prompts={"text": ["a1"]},
        temperatures=[0.0],
        batches=[1],
        generate=8,
        pairs=1,
    )
    [cell] = bench_speculate(order, EngineOptions())
    # Timed after the first arrival it would be 8 tokens in no time.
    assert cell.plain_tokens_per_s.max <= 8 / 0.01
