"""`bench engine` and `bench profile`: output, counts, errors. No measured value is asserted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from golden import FOLDER
from headrace.bench import engine as bench
from headrace.bench.engine import bench_step
from headrace.bench.profile import bench_profile
from headrace.bench.single_run import RunResult
from headrace.bench.workload import Workload
from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.executors.machine_limits import Limits
from headrace.loading.options import EngineOptions

CONFIG = FOLDER / "llama3" / "config.json"
WORKLOAD = Workload(model=None, config=CONFIG, prompt=20, generate=5, batch=2)
LIMITS = Limits(
    cpu="a", isa="b", threads=1, measured_at="c", read_bytes_per_s=1e9, f32_per_s=1e9, bf16_per_s=1e9,
    int8_per_s=1e9,
)  # fmt: skip
FIGURES = RunResult(
    prefill_tokens_per_s=100, decode_tokens_per_s=10, ttft_s=1, tpot_s=0.1, load_s=1,
    first_token_from_start_s=1, peak_rss_bytes=10**6,
)  # fmt: skip


def test_json_has_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "engine", "--config", str(CONFIG), "--quantization", "int8", "--prompt", "20"]
    with pytest.raises(SystemExit) as exit:
        main([*words, "--generate", "5", "--batch", "2", "--runs", "1", "--threads", "1", "--json"])
    assert exit.value.code == 0
    found = json.loads(capsys.readouterr().out)
    for name in (
        *("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_s", "tpot_s", "load_s"),
        *("first_token_from_start_s", "peak_rss_bytes"),
        *("prefill_share_of_int8_peak", "decode_share_of_int8_peak", "decode_share_of_bandwidth"),
    ):
        assert 0 < found[name]["min"] <= found[name]["median"] <= found[name]["max"]
    assert found["weight_bytes_per_token"] > 0
    assert found["limits"]["threads"] == 1


def test_profile_names_every_instruction() -> None:
    options = bench.fitted(WORKLOAD, EngineOptions(quantization="int4", threads=1))
    _, (prefill, decode) = bench_profile(WORKLOAD, options, repeats=2)
    for profile in (prefill, decode):
        assert sum(part.count for part in profile.parts if part.name == "attend") == 3  # layers
        assert all(part.seconds > 0 for part in profile.parts if part.count)
        products = [part for part in profile.parts if part.name.startswith("fused_linear")]
        assert products
        assert all(part.least_s for part in products)


def fake_speeds(monkeypatch: pytest.MonkeyPatch, *speeds: float) -> Iterator[float]:
    """Use fake runs; each probe of the machine returns the next of `speeds`."""
    left = iter(speeds)
    monkeypatch.setattr(
        bench, "machine_limits", lambda threads, cache: replace(LIMITS, int8_per_s=1e9 * next(left))
    )
    monkeypatch.setattr(bench, "_run", lambda workload, options: FIGURES)
    return left


def test_slow_runs_are_marked_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    # One probe before the first run, then one after each: during the second run the machine has half
    # its speed.
    fake_speeds(monkeypatch, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0)
    report = bench_step(WORKLOAD, EngineOptions(), runs=3)
    # The slow probe is adjacent to the runs before and after it.
    assert (report.runs, report.slow_runs) == (3, 2)
    assert report.decode_share_of_bandwidth.min == report.decode_share_of_bandwidth.max


def test_slow_runs_count_without_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = fake_speeds(monkeypatch, 1.0, 1.0, 0.5, 1.0)
    report = bench_step(WORKLOAD, EngineOptions(), runs=3, repeats=0)
    assert (report.runs, report.slow_runs, next(speeds, None)) == (3, 2, None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: replace(WORKLOAD, prompt=0), "--prompt"),
        (lambda: replace(WORKLOAD, model="novelette"), "--config"),
        (lambda: bench_step(WORKLOAD, EngineOptions(), runs=0), "--runs"),
        (lambda: bench_step(WORKLOAD, EngineOptions(), runs=1, repeats=-1), "--repeats"),
        (lambda: bench_step(replace(WORKLOAD, prompt=10**6), EngineOptions(), runs=1), "--prompt"),
    ],
)
def test_invalid_options_are_named(change: Callable[[], object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        change()


def test_a_run_beats_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_speeds(monkeypatch, 1.0, 1.0)
    monkeypatch.setattr(bench, "cache_bytes", lambda: 0)
    monkeypatch.setattr(bench, "_run", lambda workload, options: replace(FIGURES, decode_tokens_per_s=1e9))
    report = bench_step(WORKLOAD, EngineOptions(), runs=1)
    assert report.decode_share_of_bandwidth.max == pytest.approx(1.0) and not report.fits_cache
    monkeypatch.setattr(bench, "cache_bytes", lambda: 1 << 40)
    assert report.fits_cache
