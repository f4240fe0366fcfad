"""`headrace bench engine`: prefill and decode speed of a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from headrace.bench.engine import MAX_REPEATS, StepReport, bench_step, default_cache, shares
from headrace.bench.summary import Summary
from headrace.bench.workload import Workload
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.model_argument import ModelArgument
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, size, status
from headrace.config.settings import Settings
from headrace.loading.options import engine_options

HELP = """Measure a model's prefill and decode speed on this machine.

With --config instead of MODEL the weights are random, which shows how fast a model would be before you
download it. Every run is a separate process. The machine's limits are measured before and after each run;
runs during which the machine was slower than at its best are marked, and repeated as --repeats permits.

\b
Examples:
  headrace bench engine
  headrace bench engine Qwen/Qwen3-0.6B --quantization int4 --prompt 512 --generate 128
  headrace bench engine --config config.json --quantization int4 --batch 16 --prompt 128
"""


@takes_settings(
    "quantization", "kv_cache_dtype", "max_model_len", "threads", "max_batch_tokens", "cache_dir", "offline"
)
def command(
    model: ModelArgument = None,
    config: Annotated[Path | None, typer.Option(help="A config.json, run with random weights.")] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 512,
    generate: Annotated[int, typer.Option(help="Tokens generated after each prompt.")] = 128,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 1,
    runs: Annotated[int, typer.Option(help="Number of runs; the median is shown.")] = 3,
    repeats: Annotated[int, typer.Option(help="Maximum repeats of slow runs, per run.")] = MAX_REPEATS,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure; see HELP."""
    workload = Workload(model=model, config=config, prompt=prompt, generate=generate, batch=batch)
    if model is not None:
        fetch(model, settings)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, status() as show:
        options = default_cache(engine_options(settings), workload, Path(folder))
        report = bench_step(workload, options, runs=runs, repeats=repeats, progress=show)
    if json:
        print_json(_document(report))
    else:
        _print(report)


def _document(report: StepReport) -> dict[str, Any]:
    figures = {name: to_builtins(figure) for name, figure in report.figures.items()}
    figures |= {name: to_builtins(share) for name, share in shares(report)}
    return figures | {
        "limits": to_builtins(report.limits),
        "weight_bytes_per_token": report.weight_bytes_per_token,
        "weights_bytes": report.plan.weights_bytes,
        "kv_bytes": report.plan.kv_bytes,
        "workload": report.workload.to_json(),
        "runs": report.runs,
        "slow_runs": report.slow_runs,
    }


def _print(report: StepReport) -> None:
    work, limits = report.workload, report.limits
    print(f"{work.name}: {work.batch} x ({work.prompt:,} prompt + {work.generate:,} generated tokens)")
    print(
        f"{limits.cpu}, {limits.isa}, {limits.threads} threads: {size(limits.read_bytes_per_s)}/s, "
        f"{limits.best_int8_per_s / 1e12:.2f} T int8/s, {limits.best_bf16_per_s / 1e12:.2f} T bf16/s"
    )
    of_peak = f"of the {report.arithmetic} peak"
    prefill, decode = (
        _percent(share) for share in (report.prefill_share_of_peak, report.decode_share_of_peak)
    )
    rows = [
        _row("prefill", report, "prefill_tokens_per_s", "tok/s", f"{prefill} {of_peak}"),
        _row(
            "decode",
            report,
            "decode_tokens_per_s",
            "tok/s",
            f"{_bandwidth(report)}, {decode} {of_peak}",
        ),
        _row("first token (TTFT)", report, "ttft_s", "ms"),
        _row("per token (TPOT)", report, "tpot_s", "ms"),
        _row("load", report, "load_s", "ms"),
        _row("process start to first token", report, "first_token_from_start_s", "ms"),
        _row("peak memory", report, "peak_rss_bytes", "MB", _memory(report)),
    ]
    print_table(rows, header=("", "MEDIAN", "MIN", "MAX", "", ""))
    if report.slow_runs:
        note(
            f"slow runs: {report.slow_runs}; other programs were using the machine."
            " They count only if there are too few fast ones"
        )


def _row(label: str, report: StepReport, name: str, unit: str, remark: str = "") -> tuple[str, ...]:
    figure = report.figures[name]
    factor = {"tok/s": 1.0, "ms": 1e3, "MB": 1e-6}[unit]
    numbers = (figure.median, figure.min, figure.max)
    return (label, *(_number(number * factor) for number in numbers), unit, remark)


def _bandwidth(report: StepReport) -> str:
    if report.fits_cache:
        return "weights in the caches"
    return f"{_percent(report.decode_share_of_bandwidth)} of bandwidth"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: Summary) -> str:
    return f"{share.median:.0%}"


def _memory(report: StepReport) -> str:
    return f"weights {size(report.plan.weights_bytes)}, keys and values {size(report.plan.kv_bytes)}"
