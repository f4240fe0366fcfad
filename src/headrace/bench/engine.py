"""`headrace bench engine`: a model's prefill and decode speed, relative to the machine's limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.single_run import RunConfig, RunResult
from headrace.bench.summary import Summary, spread
from headrace.bench.workload import Workload, prepare_workload
from headrace.engine.client import MemoryPlan
from headrace.errors import HeadraceError, UsageError
from headrace.executors.cpu_cache import LEAST_CACHES, cache_bytes
from headrace.executors.machine_limits import Limits, machine_limits, raised
from headrace.loading.loader import usable_cores
from headrace.loading.options import EngineOptions
from headrace.loading.roofline import Roofline, roofline

SLOW_SHARE = 0.9  # of the best limit measured; below this, other programs were using the machine
MAX_REPEATS = 2  # per requested run

Progress = Callable[[str], None]


class StepReport(Struct, frozen=True, kw_only=True):
    """The results. Shares are relative to the limits measured directly before and after each run.

    `slow_runs` were taken while the machine was slower than `SLOW_SHARE` of its best; they were repeated as
    long as repeats were left.
    `decode_share_of_bandwidth` can exceed 1 where the processor's caches hold weights (`fits_cache`).
    `prefill_share_of_peak` is relative to the peak of `arithmetic`; only matrix products count as work.
    """

    workload: Workload
    figures: dict[str, Summary]
    arithmetic: str
    weight_bytes_per_token: int
    plan: MemoryPlan
    prefill_share_of_peak: Summary
    decode_share_of_peak: Summary
    decode_share_of_bandwidth: Summary
    limits: Limits
    runs: int
    slow_runs: int

    @property
    def fits_cache(self) -> bool:
        """Whether so much of the weights stays in the caches that the bandwidth of memory says nothing."""
        return self.weight_bytes_per_token < LEAST_CACHES * cache_bytes()


class _Run(Struct, frozen=True):
    figures: RunResult
    limits: Limits  # the worse of the limits before and after the run
    slow: bool


def bench_step(
    workload: Workload,
    options: EngineOptions,
    *,
    runs: int,
    repeats: int = MAX_REPEATS,
    progress: Progress = lambda text: None,
) -> StepReport:
    """Measure `runs` runs, each in its own process, after one that fills the packed-weight cache.

    Slow runs are measured again, up to `repeats` times per requested run. Raises the errors of loading, and
    UsageError if `runs` or `repeats` is out of range.
    """
    if runs < 1:
        raise UsageError(f"--runs is {runs}, it must be at least 1", param="runs")
    if repeats < 0:
        raise UsageError(f"--repeats is {repeats}, it must be at least 0", param="repeats")
    options = fitted(workload, options)
    with prepare_workload(workload, options) as prepared:
        plan, limit = prepared.plan, roofline(prepared.program, prepared.wanted)
    progress("packing weights")
    _run(replace(workload, prompt=1, generate=1, batch=1), options)
    done = [
        _raised(run, plan, workload) for run in _measured_runs(workload, options, runs, repeats, progress)
    ]
    kept = sorted(done, key=lambda run: run.slow)[:runs]
    return StepReport(
        workload=workload,
        figures={
            name: spread([getattr(run.figures, name) for run in kept]) for name in RunResult.__struct_fields__
        },
        arithmetic=limit.arithmetic,
        weight_bytes_per_token=plan.weight_bytes_per_token,
        plan=plan,
        prefill_share_of_peak=spread([_prefill_share(run, limit) for run in kept]),
        decode_share_of_peak=spread([_decode_share(run, limit) for run in kept]),
        decode_share_of_bandwidth=spread([_bandwidth_share(run, plan, workload) for run in kept]),
        limits=max((run.limits for run in done), key=lambda limits: limits.int8_per_s),
        runs=len(kept),
        slow_runs=sum(run.slow for run in done),
    )


def fitted(workload: Workload, options: EngineOptions) -> EngineOptions:
    """The options with enough context and sequences for the workload."""
    return replace(
        options,
        max_model_len=options.max_model_len or workload.prompt + workload.generate,
        max_num_seqs=workload.batch,
        max_batch_tokens=max(options.max_batch_tokens, workload.batch),
        speculative="off",  # measure decode without drafts
    )


def another_is_due(slow: Sequence[bool], wanted: int, repeats: int) -> bool:
    """True if another measurement is needed: slow ones are repeated, up to `repeats` per wanted one."""
    return len(slow) - sum(slow) < wanted and len(slow) < wanted * (1 + repeats)


def _measured_runs(
    workload: Workload, options: EngineOptions, runs: int, repeats: int, progress: Progress
) -> list[_Run]:
    threads = options.threads or usable_cores()
    before = machine_limits(threads, None)
    best = before
    done: list[_Run] = []
    while another_is_due(slow := [run.slow for run in done], runs, repeats):
        progress(f"run {len(done) + 1}, {runs} wanted" + (f" ({sum(slow)} slow so far)" if any(slow) else ""))
        figures = _run(workload, options)
        after = machine_limits(threads, None)
        best = _better(best, after)
        worse = _worse(before, after)
        done.append(_Run(figures, worse, slow=False))
        # A better limit measured later shows that earlier runs were slow as well.
        done = [replace(run, slow=_is_slow(run.limits, best)) for run in done]
        before = after
    return done


def _run(workload: Workload, options: EngineOptions) -> RunResult:
    order = RunConfig(workload=workload, options=options, started_s=time.monotonic())
    command = [sys.executable, "-m", "headrace.bench.single_run", order.to_json()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        raise HeadraceError(f"a run ended with exit code {done.returncode}; its output is above")
    found = json.loads(done.stdout)
    if "error" in found:
        error = UsageError if found["exit_code"] == UsageError.exit_code else HeadraceError
        raise error(found["error"], param=found["param"])
    return RunResult(**found)


def _better(one: Limits, other: Limits) -> Limits:
    return replace(
        one,
        int8_per_s=max(one.int8_per_s, other.int8_per_s),
        matrix_bf16_per_s=max(one.matrix_bf16_per_s, other.matrix_bf16_per_s),
        matrix_int8_per_s=max(one.matrix_int8_per_s, other.matrix_int8_per_s),
        read_bytes_per_s=max(one.read_bytes_per_s, other.read_bytes_per_s),
    )


def _worse(one: Limits, other: Limits) -> Limits:
    return min((one, other), key=lambda limits: limits.int8_per_s * limits.read_bytes_per_s)


def _is_slow(limits: Limits, best: Limits) -> bool:
    shares = limits.int8_per_s / best.int8_per_s, limits.read_bytes_per_s / best.read_bytes_per_s
    return min(shares) < SLOW_SHARE


def _raised(run: _Run, plan: MemoryPlan, workload: Workload) -> _Run:
    """A run that has read more from memory than the limits around it allow proves them wrong: other programs
    used the machine while they were measured."""
    steps_per_s = run.figures.decode_tokens_per_s / workload.batch
    read = steps_per_s * (plan.weight_bytes_per_token - cache_bytes())
    return replace(run, limits=raised(run.limits, read, None))


def _prefill_share(run: _Run, limit: Roofline) -> float:
    return run.figures.prefill_tokens_per_s * limit.operations_per_prompt_token / limit.peak(run.limits)


def _decode_share(run: _Run, limit: Roofline) -> float:
    return run.figures.decode_tokens_per_s * limit.operations_per_generated_token / limit.peak(run.limits)


def _bandwidth_share(run: _Run, plan: MemoryPlan, workload: Workload) -> float:
    """Counts weights, which are read once per step for any batch size, but not keys and values."""
    steps_per_s = run.figures.decode_tokens_per_s / workload.batch
    return steps_per_s * plan.weight_bytes_per_token / run.limits.read_bytes_per_s


def default_cache(options: EngineOptions, workload: Workload, temporary: Path) -> EngineOptions:
    """Pack random weights into a temporary folder."""
    return options if workload.config is None else replace(options, cache_dir=temporary)


def shares(report: StepReport) -> Sequence[tuple[str, Summary]]:
    """The shares, with their names in JSON."""
    peak = "int8" if report.arithmetic == "int8" else report.arithmetic
    return (
        (f"prefill_share_of_{peak}_peak", report.prefill_share_of_peak),
        (f"decode_share_of_{peak}_peak", report.decode_share_of_peak),
        ("decode_share_of_bandwidth", report.decode_share_of_bandwidth),
    )
