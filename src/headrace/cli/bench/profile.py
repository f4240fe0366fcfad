"""`headrace bench profile`: the time of each instruction of a step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.bench.engine import default_cache, fitted
from headrace.bench.profile import ProfilePart, StepProfile, bench_profile
from headrace.bench.workload import Workload
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.model_argument import ModelArgument
from headrace.cli.terminal import JsonFlag, print_json, print_table, status
from headrace.config.settings import Settings
from headrace.loading.options import engine_options

HELP = """Time every instruction of a prefill step and of a decode step.

LIMIT is the minimum time by the machine's limits: reading the weights (or keys and values), or computing the
matrix products, whichever takes longer. OF LIMIT is LIMIT divided by the measured time.

\b
Examples:
  headrace bench profile --prompt 256
  headrace bench profile --config config.json --quantization int4 --batch 16
"""


@takes_settings(
    "quantization", "kv_cache_dtype", "max_model_len", "threads", "max_batch_tokens", "cache_dir", "offline"
)
def command(
    model: ModelArgument = None,
    config: Annotated[Path | None, typer.Option(help="A config.json, run with random weights.")] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 512,
    batch: Annotated[int, typer.Option(help="Batch size of the decode step.")] = 1,
    repeats: Annotated[
        int, typer.Option(min=1, help="Number of steps; the median of each time is shown.")
    ] = 15,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure; see HELP."""
    workload = Workload(model=model, config=config, prompt=prompt, generate=1, batch=batch)
    if model is not None:
        fetch(model, settings)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, status() as show:
        options = default_cache(fitted(workload, engine_options(settings)), workload, Path(folder))
        limits, profiles = bench_profile(workload, options, repeats=repeats, progress=show)
    if json:
        print_json({"limits": to_builtins(limits), "steps": [to_builtins(profile) for profile in profiles]})
        return
    for profile in profiles:
        _print(profile)


def _print(profile: StepProfile) -> None:
    timed_s = sum(part.seconds for part in profile.parts)
    print(f"{profile.title}: {_ms(profile.step_s)} ms (sum of its parts:  {_ms(timed_s)} ms)\n")
    rows = [_row(part, timed_s) for part in profile.parts]
    print_table(rows, header=("INSTRUCTION", "COUNT", "MS", "SHARE", "LIMIT MS", "OF LIMIT", "BOUND BY"))
    least_s = sum(part.least_s or 0.0 for part in profile.parts)
    print(f"\nall limits together: {_ms(least_s)} ms, {least_s / profile.step_s:.0%} of the step\n")


def _row(part: ProfilePart, total_s: float) -> tuple[str, ...]:
    return (
        part.name,
        str(part.count),
        _ms(part.seconds),
        f"{part.seconds / total_s:.1%}",
        "" if part.least_s is None else _ms(part.least_s),
        "" if part.least_s is None else f"{part.least_s / part.seconds:.0%}",
        part.bound,
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}" if seconds < 0.1 else f"{1e3 * seconds:.1f}"
