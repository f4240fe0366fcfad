"""`headrace bench quality`: what another form of a model costs in quality."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.bench.quality.gate import check
from headrace.bench.quality.html import figures, html
from headrace.bench.quality.measure import Side, measure, measure_against_file
from headrace.bench.quality.own_text import TextOrder
from headrace.bench.quality.png import plot
from headrace.bench.quality.report import QualityReport
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.model_argument import ModelArgument
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar, status
from headrace.cli.text_input import read_text
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.loading.model_record import MeasuredForm, read_cached, write_cached
from headrace.loading.options import EngineOptions, engine_options

HELP = """Measure what a smaller or faster form of a model costs in quality, against a reference.

MODEL is loaded with --quantization and --kv-cache-dtype, the reference as it is stored, with keys and values
in float32. Both read the same text, and their next-token distributions are compared at every position:

\b
  KL          KL divergence from the reference, in nats: 0 if nothing was lost
  top-1       share of positions at which both find the same token most likely
  perplexity  exp(mean negative log likelihood); the ratio to the reference's is
              what a text tells about the loss
  greedy      tokens of a greedy answer until it differs from the reference's

KL is the figure to trust: perplexity of a short text moves by chance, and may fall. Intervals have 95 %
confidence. Without --text the reference writes the text itself, which fits every model; name a text of your
own domain for a decision. --against also takes a file of llama.cpp's log probabilities (llama-perplexity
--kl-divergence-base FILE).

The figures are kept in the cache folder: loading a form of few bits that was never measured says so, and
--quality max_kl=N refuses one that is worse.

\b
Examples:
  headrace bench quality mini --quantization int4
  headrace bench quality my-model-q4.gguf --against ./my-model --text manual.txt
  headrace bench quality mini --quantization int4 --max-kl 0.02 --json
  headrace bench quality mini --quantization int8 --html quality.html
"""


@takes_settings("quantization", "kv_cache_dtype", "threads", "cache_dir", "offline")
def command(
    model: ModelArgument = None,
    against: Annotated[
        str | None,
        typer.Option(help="The reference: a model, or a file of llama.cpp [default: MODEL as stored]."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="A text to read, UTF-8.")] = None,
    windows: Annotated[int, typer.Option(min=2, max=4096, help="Most windows to read.")] = 16,
    window: Annotated[int, typer.Option(min=16, max=32768, help="Tokens of a window.")] = 512,
    greedy: Annotated[int, typer.Option(min=0, max=4096, help="Tokens of greedy answers; 0: none.")] = 64,
    max_kl: Annotated[
        float | None, typer.Option(min=0.0, help="Exit with 1 if the mean KL is higher.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Plot the divergence, with matplotlib.")] = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page: figures, and quality over bytes and speed."),
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure; see HELP."""
    if png is not None:
        check_matplotlib()
    if max_kl is not None and not max_kl < math.inf:
        raise UsageError(f"--max-kl is {max_kl}, it must be a number of nats from 0", param="max_kl")
    options = engine_options(settings)
    order = TextOrder(
        windows=windows,
        length=window,
        continued=greedy,
        text=None if text is None else read_text(str(text)),
        source="" if text is None else text.name,
    )
    report = _measured(Side(model, options), against, order, settings)
    forms = _remembered(report, options)
    if json:
        print_json(to_builtins(report))
    else:
        _print(report, options)
    if png is not None:
        plot(report, png)
        note(f"wrote {png}")
    if html_file is not None:
        html_file.write_text(html(report, forms), encoding="utf-8")
        note(f"wrote {html_file}")
    check(report, max_kl)


def _remembered(report: QualityReport, options: EngineOptions) -> tuple[MeasuredForm, ...]:
    """The forms that were measured of these weights on this machine, with this one; they are kept for
    loading. A form of a reference that is not known by its weights is not."""
    cache = options.cache_dir
    if cache is None or not report.reference_fingerprint:
        return (report.measured,)
    record = read_cached(cache, report.fingerprint).with_measured(report.measured)
    try:
        write_cached(cache, report.fingerprint, record)
    except OSError as error:
        note(f"the figures are not kept for loading: {error.strerror} ({cache})")
    return record.quality


def _measured(side: Side, against: str | None, order: TextOrder, settings: Settings) -> QualityReport:
    if side.model is not None:
        fetch(side.model, settings)
    if against is not None and Path(against).is_file() and not against.endswith(".gguf"):
        if order.text is not None:
            raise UsageError(f"{against} has its own text: leave --text out", param="text")
        with progress_bar("reading", unit="windows") as progress:
            return measure_against_file(side, Path(against), windows=order.windows, progress=progress)
    if against is not None:
        fetch(against, settings)
    stored = replace(side.options, quantization="keep", kv_cache_dtype="f32")
    reference = Side(side.model if against is None else against, stored)
    with status() as show, progress_bar("reading", unit="windows") as progress:
        return measure(side, reference, order, show=show, progress=progress)


def _print(report: QualityReport, options: EngineOptions) -> None:
    print(
        f"{report.model} ({options.quantization}, keys and values {options.kv_cache_dtype}) against"
        f" {report.reference}: {report.tokens:,} tokens in {report.windows} windows, {report.source}"
    )
    print_table(figures(report), header=("", "", "95 % INTERVAL"))
    print()
    contexts = [
        (f"{one.kl:.3f}", repr(one.token)[1:-1], repr(one.before)[1:-1][-60:]) for one in report.worst[:5]
    ]
    print_table(contexts, header=("KL", "TOKEN", "AFTER"))
