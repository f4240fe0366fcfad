"""The statistics of an answer: where they are shown, and shares that are possible."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.cli import statistics as module
from headrace.cli.statistics import Statistics, StatisticsReader
from headrace.config.settings import Settings
from headrace.engine.request import Timing, Usage
from headrace.executors.machine_limits import Limits, machine_limits
from headrace.inference.completion import Completion
from headrace.llm import LLM

CACHE = 1_000_000


class Stream(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def fake_llm(nbytes_per_token: int, drafted: int = 0) -> LLM:
    status = SimpleNamespace(drafted=drafted)
    model = SimpleNamespace(
        engine=SimpleNamespace(status=lambda: status),
        plan=SimpleNamespace(weight_bytes_per_token=nbytes_per_token),
    )
    return cast("LLM", SimpleNamespace(model=model, status=status))


def answer(tokens_per_s: float) -> Completion:
    """Eleven tokens."""
    usage = Usage(prompt_tokens=5, completion_tokens=11, cached_tokens=0)
    timing = Timing(queue_s=0, first_token_s=0.1, total_s=0.1 + 10 / tokens_per_s)
    return cast("Completion", SimpleNamespace(usage=usage, timing=timing))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """A machine that reads 1 GB/s, with a cache of one megabyte."""
    limits = Limits(
        cpu="x",
        isa="y",
        threads=1,
        measured_at="",
        read_bytes_per_s=1e9,
        f32_per_s=1,
        bf16_per_s=1,
        int8_per_s=1,
    )
    monkeypatch.setattr(module, "cache_bytes", lambda: CACHE)
    monkeypatch.setattr(module, "machine_limits", lambda threads, cache: limits)
    return Settings(cache_dir=tmp_path)


def read(machine: Settings, nbytes: int, tokens_per_s: float) -> Statistics:
    return StatisticsReader(fake_llm(nbytes), machine, shown=None).read(answer(tokens_per_s))


def test_a_share_of_what_is_read_from_memory(machine: Settings) -> None:
    found = read(machine, 100 * CACHE, 5)
    assert found.tokens_per_s == pytest.approx(5)
    assert found.bandwidth_share == pytest.approx(0.5)
    assert "50% of this machine's memory bandwidth (1.0 GB/s)" in found.line()


def test_weights_that_fit_the_cache_have_no_share(machine: Settings) -> None:
    found = read(machine, 3 * CACHE, 5000)
    assert (found.bandwidth_share, found.bandwidth_bytes_per_s) == (None, None)
    assert "bandwidth" not in found.line() and "5,000.0 tokens/s" in found.line()


def test_a_run_that_beats_the_limit_raises_it(machine: Settings) -> None:
    found = read(machine, 100 * CACHE, 50)  # 5 GB/s
    assert found.bandwidth_share is not None and 0.99 < found.bandwidth_share <= 1
    assert found.bandwidth_bytes_per_s == pytest.approx(50 * 99 * CACHE)


def test_verified_drafts_have_no_share(machine: Settings) -> None:
    llm: Any = fake_llm(100 * CACHE)
    reader = StatisticsReader(llm, machine, shown=None)
    llm.status.drafted = 4
    assert reader.read(answer(5)).bandwidth_share is None
    assert reader.read(answer(5)).bandwidth_share == pytest.approx(0.5)  # the next answer had none


@pytest.mark.parametrize(
    ("shown", "terminal", "text"),
    [
        (None, True, "\x1b[2m5.0 tokens/s · first token after 100 ms\x1b[0m\n"),
        (None, False, ""),
        (False, True, ""),
        (True, False, "5.0 tokens/s · first token after 100 ms · 11 tokens · prompt 5 (0 cached)\n"),
    ],
)
def test_where_they_are_shown(
    machine: Settings, monkeypatch: pytest.MonkeyPatch, shown: bool | None, terminal: bool, text: str
) -> None:
    stream = Stream() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    StatisticsReader(fake_llm(CACHE), machine, shown=shown).show(answer(5))
    assert stream.getvalue() == text


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_where_it_is_asked_for(
    machine: Settings, monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(*variable)
    StatisticsReader(fake_llm(CACHE), machine, shown=None).show(answer(5))
    assert "\x1b" not in stream.getvalue() and "tokens/s" in stream.getvalue()


def test_a_speed_needs_no_measurement(machine: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_limits", lambda *_: pytest.fail("the machine was measured"))
    monkeypatch.setattr(sys, "stdout", Stream())
    monkeypatch.setattr(sys, "stderr", Stream())
    StatisticsReader(fake_llm(100 * CACHE), machine, shown=None).show(answer(5))
    assert machine_limits is not module.machine_limits
