"""`headrace bench speculative`: the speed-up of speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.bench.serve.workload import read_prompts
from headrace.bench.speculative import JOBS, SpeculativeBenchConfig, SpeculativeBenchResult, bench_speculate
from headrace.bench.speculative_plot import plot_speed_ups
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.model_argument import ModelArgument
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, status
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.loading.options import engine_options

HELP = """Measure the speed-up of speculative decoding: drafting tokens and verifying several in one step.

SPEED-UP is the ratio of tokens per second to plain decoding, over all pairs of runs; PER PAIR is the median
pair, with minimum and maximum. Prompts are in the prefix cache, so that nearly all time is decoding. Drafts
never change the output; this is verified too.

\b
Examples:
  headrace bench speculative
  headrace bench speculative MODEL --speculative-model SMALL --temperature 0.8 --batch 1 --batch 16
  headrace bench speculative MODEL --prompts prompts.txt --png speed-up.png
"""

PromptsFlag = Annotated[
    list[Path] | None,
    typer.Option(
        help='Prompts instead of the built-in ones, one per line; in a .jsonl file as {"prompt": "..."}.'
        " Can be repeated: one task per file."
    ),
]


@takes_settings(
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "threads",
    "max_batch_tokens",
    "speculative_model",
    "speculative_layers",
    "cache_dir",
    "offline",
)
def command(
    model: ModelArgument = None,
    prompts: PromptsFlag = None,
    temperature: Annotated[list[float] | None, typer.Option(help="Can be repeated.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; can be repeated.")] = None,
    tokens: Annotated[int, typer.Option(help="Maximum tokens per prompt.")] = 96,
    pairs: Annotated[int, typer.Option(help="Pairs of runs, one plain and one with drafts.")] = 5,
    raw: Annotated[
        bool, typer.Option("--raw", help="Use prompts as they are, without the chat template.")
    ] = False,
    png: Annotated[Path | None, typer.Option(help="Plot the speed-ups into this file.")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure; see HELP."""
    if png is not None:
        check_matplotlib()
    if model is not None:
        fetch(model, settings)
    options = engine_options(settings)
    order = SpeculativeBenchConfig(
        model=model,
        prompts=_jobs(prompts) if prompts else JOBS,
        temperatures=temperature or [0.0],
        batches=batch or [1],
        generate=tokens,
        pairs=pairs,
        raw=raw,
    )
    with status() as show:
        figures = list(bench_speculate(order, options, progress=show))
    if png is not None:
        plot_speed_ups(figures, png)
    if json:
        print_json([to_builtins(figure) for figure in figures])
    else:
        print_table(
            [_row(figure) for figure in figures],
            header=(
                *("TASK", "DRAFT METHOD", "TEMP", "BATCH", "PLAIN tok/s", "SPEED-UP", "PER PAIR"),
                *("TOKENS/STEP", "ACCEPTED"),
            ),
        )
        _warn(figures)


def _warn(figures: Sequence[SpeculativeBenchResult]) -> None:
    names = ", ".join(dict.fromkeys(figure.job for figure in figures if figure.disturbed))
    if names:
        note(
            f"note: the speed-up of {names} exceeds the tokens per step, which bound it: other programs "
            "slowed the plain runs down; measure again on an idle machine"
        )


def _jobs(paths: list[Path]) -> dict[str, list[str]]:
    jobs: dict[str, list[str]] = {}
    for path in paths:
        if path.stem in jobs:
            raise UsageError(
                f"--prompts names two files {path.stem!r}, which would be one task: rename one",
                param="prompts",
            )
        jobs[path.stem] = _read_prompts(path)
    return jobs


def _read_prompts(path: Path) -> list[str]:
    if path.suffix == ".jsonl":
        return [str(ask.prompt) for ask in read_prompts(path, "completions", 1).prompts]
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} cannot be read: {error}", param="prompts") from None
    if not lines:
        raise UsageError(f"--prompts {path} is empty: write one prompt per line", param="prompts")
    return lines


def _row(figure: SpeculativeBenchResult) -> tuple[str, ...]:
    speed_up = figure.speed_up
    return (
        figure.job,
        figure.drafter,
        f"{figure.temperature:g}",
        str(figure.batch),
        f"{figure.plain_tokens_per_s.median:,.0f}",
        f"{figure.job_speed_up:.2f}",
        f"{speed_up.median:.2f} ({speed_up.min:.2f} to {speed_up.max:.2f})",
        f"{figure.tokens_per_step:.2f}",
        f"{figure.accepted:.0%} of {figure.drafted_per_token:.2f} per token",
    )
