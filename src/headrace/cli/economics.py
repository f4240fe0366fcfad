"""`headrace economics`: machines of one's own, an API, or both, at any multiple of recorded traffic."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.bench.serve.trace import read_trace
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.economy.crossover import (
    Crossover,
    Objectives,
    api_usd_per_hour,
    crossover,
    traffic_of,
)
from headrace.economy.crossover_plot import plot_crossover
from headrace.economy.node import node_speed
from headrace.economy.prices import PriceBook
from headrace.economy.rates import Unpriced
from headrace.economy.tiers import STANDARD
from headrace.errors import UsageError
from headrace.loading.describe import describe
from headrace.loading.options import engine_options

HELP = """Compare the cost of machines of your own with an API's, for recorded traffic and multiples of it.

A simulation of continuous batching finds the fewest nodes that keep the objectives. The speeds of a node are
what `headrace bench` measures: tokens per second of prompts (--prefill-tps), of all answers together when
--rows of them run (--decode-tps), and of one answer alone (--single-tps). A speed that is not given is the
most that this machine's memory and arithmetic permit for --model, as `headrace show` says. Requests go to
nodes at random, which needs more of them than a balancer would. The API's prices hold for uncached input.

\b
Examples:
  headrace economics --trace trace.csv --node-usd 0.2 --api openai/gpt-4o-mini --model Qwen/Qwen3-0.6B
  headrace economics --trace trace.csv --node-usd 2.5 --api openai/gpt-4o-mini --prefill-tps 20000 \\
    --decode-tps 4000 --single-tps 100 --rows 128 --png crossover.png
"""


@takes_settings("prices", *MODEL_SETTINGS)
def command(
    trace: Annotated[Path, typer.Option(help="Azure's CSV or Mooncake's JSON lines, also as .xz.")],
    node_usd: Annotated[float, typer.Option(min=0.000001, help="Dollars per node and hour.")],
    api: Annotated[str, typer.Option(metavar="PROVIDER/MODEL", help="Whose prices the API has.")],
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The model that nodes serve.")] = None,
    prefill_tps: Annotated[
        float | None, typer.Option(min=0.001, help="Tokens of prompts per second of a node.")
    ] = None,
    decode_tps: Annotated[
        float | None, typer.Option(min=0.001, help="Tokens of all answers per second.")
    ] = None,
    single_tps: Annotated[
        float | None, typer.Option(min=0.001, help="Tokens of one answer alone per second.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Answers at the same time on a node.")] = 64,
    ttft_ms: Annotated[float, typer.Option(min=1, help="Objective: time to the first token.")] = 1000.0,
    tpot_ms: Annotated[float, typer.Option(min=1, help="Objective: time per further token.")] = 100.0,
    met: Annotated[float, typer.Option(min=0.01, max=1, help="Share of requests within both.")] = 0.95,
    png: Annotated[Path | None, typer.Option(help="Draw the costs to this file.")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Compute and show it; see HELP."""
    if png is not None:
        check_matplotlib()
    if prefill_tps is None or decode_tps is None or single_tps is None:
        limits = _limits(model, settings, rows)
        prefill_tps, decode_tps = prefill_tps or limits.prefill_tps, decode_tps or limits.decode_tps
        single_tps = single_tps or limits.single_tps
    speed = node_speed(prefill_tps=prefill_tps, decode_tps=decode_tps, single_tps=single_tps, max_rows=rows)
    traffic = traffic_of(read_trace(trace))
    input_usd, output_usd = _api_prices(PriceBook(settings.prices), api)
    found = crossover(
        traffic,
        speed,
        Objectives(ttft_ms / 1000, tpot_ms / 1000, met),
        node_usd=node_usd,
        api_usd=api_usd_per_hour(traffic, input_usd, output_usd),
    )
    if json:
        print_json(to_builtins(found))
    else:
        _print(found, len(traffic.at_s), traffic.tokens_per_hour)
    if png is not None:
        plot_crossover(found, png)
        note(f"wrote {png}")


@dataclass(frozen=True, slots=True)
class _NodeLimits:
    prefill_tps: float
    decode_tps: float
    single_tps: float


def _limits(model: str | None, settings: Settings, rows: int) -> _NodeLimits:
    """The most that this machine permits: a step reads the weights once, whatever its rows, and computes each
    row as long as a token of a prompt."""
    facts = describe(model, engine_options(settings))
    if facts.speed is None:
        raise UsageError(
            f"{facts.name} has no speed limit here ({facts.plan_problem or 'it does not generate'})"
        )
    single, prefill = facts.speed.decode_tokens_per_s, facts.speed.prefill_tokens_per_s
    decode = rows / (1 / single + (rows - 1) / prefill)
    note(
        f"speeds that are not given are this machine's limits for {facts.name}: {prefill:,.0f} tokens/s of "
        f"prompts, {single:,.0f} of one answer, {decode:,.0f} of {rows}; `headrace bench` measures real ones"
    )
    return _NodeLimits(prefill, decode, single)


def _api_prices(prices: PriceBook, api: str) -> tuple[float, float]:
    """Dollars per million tokens of the input and the output, today."""
    provider, slash, model = api.partition("/")
    if not slash:
        raise UsageError(
            f"--api is {api!r}, it must be provider/model, such as openai/gpt-4o-mini", param="api"
        )
    try:
        rates = prices.rates(provider, model, STANDARD, time.time())
        return rates.of("input").base / 1e9, rates.of("output").base / 1e9
    except Unpriced as reason:
        raise UsageError(f"--api {api}: {reason}", param="api") from None


def _print(found: Crossover, requests: int, tokens_per_hour: float) -> None:
    print(f"{requests:,} requests, {tokens_per_hour / 1e6:.2f} million tokens per hour, times TRAFFIC:\n")
    header = (
        "TRAFFIC",
        "NODES",
        "USED",
        "OWN $/M",
        "API $/M",
        "OWN/API",
        "BOTH $/M",
        "WITH NODES",
        "TO THE API",
    )
    print_table(
        [
            (
                f"×{point.factor:g}",
                f"{point.nodes:,}",
                f"{point.utilization:.1%}",
                f"{point.own_usd:.3g}",
                f"{point.api_usd:.3g}",
                f"{point.own_usd / point.api_usd:.3g}" if point.api_usd else "",
                f"{point.hybrid_usd:.3g}",
                f"{point.hybrid_nodes:,}",
                f"{point.hybrid_api_share:.0%}",
            )
            for point in found.points
        ],
        header=header,
    )
    most, full = found.node_share, found.saturated_share
    print(f"\na node serves ×{most:.3g} within the objectives, ×{full:.3g} without any")
    if found.break_even_factor is None or found.break_even_utilization is None:
        print("break-even: never; a node costs more than the API for all that it can serve")
        return
    used = found.break_even_utilization
    print(f"break-even: ×{found.break_even_factor:.3g}, where {used:.1%} of a node is used")
    gain = most / found.break_even_factor
    print(f"own nodes are 10 times dearer at {used / 10:.2%}, and at most {gain:.2g} times cheaper")
