"""`headrace bench savings`: the stacked bill of recorded traffic."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.cli.bench.savings_tables import print_study
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, status
from headrace.config.settings import Settings
from headrace.economy.lever_bill import LeverBill
from headrace.economy.lever_plot import plot_bill
from headrace.economy.levers import LeverPrices
from headrace.economy.money import nano_of
from headrace.economy.prices import PriceBook
from headrace.economy.rates import Unpriced
from headrace.economy.savings.outcomes import Certified
from headrace.economy.savings.study import StudyOrder, study
from headrace.economy.savings.traffic import made_traffic, read_traffic
from headrace.economy.tiers import STANDARD
from headrace.errors import UsageError
from headrace.gateway.certificate import certify, thresholds_of, upper_bound
from headrace.loading.options import engine_options

CONFIDENCE = 0.95
ASSUMED_USD_PER_HOUR = 1.0
HELP = """Measure what each layer saves: the bill of recorded traffic, all on the large model, then with each.

All sets of layers are simulated at the recorded arrivals, with speeds of this machine's engine. SAVES is the
Shapley value: the parts sum to what all layers save together. ALONE is what a layer saves by itself, REMOVED
what is lost without it. A cost is the busy time of this machine at node_usd_per_hour; idle time is not in it.
--engine also runs the stack on real engines, layer after layer, and says how wrong the simulator was.

The small model is the bundled mini. The large one has random weights: its speed is measured, its answers are
taken to be right. With --api it is a model of a provider at its price.

\b
Example:
  headrace bench savings --engine --png savings.png
"""


@takes_settings("threads", "node_usd_per_hour", "prices")
def command(
    engine: Annotated[
        bool, typer.Option("--engine/--simulate", help="Also run the stack on real engines.")
    ] = False,
    workload: Annotated[
        Path | None, typer.Option(help="Recorded requests, JSON lines, instead of the generated ones.")
    ] = None,
    requests: Annotated[int, typer.Option(min=20, max=5000, help="Generated requests.")] = 240,
    per_second: Annotated[float, typer.Option(min=0.001, help="Generated requests per second.")] = 1.5,
    history: Annotated[int, typer.Option(min=0, max=5000, help="Labeled requests of each task.")] = 1000,
    large_config: Annotated[
        Path | None, typer.Option(help="A config.json with the shape of the large model.")
    ] = None,
    api: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL", help="The large model is this one, at its price.")
    ] = None,
    risk: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Share of cheap answers that may be wrong (95 %).")
    ] = 0.05,
    plant: Annotated[
        float, typer.Option(min=0, max=0.5, help="Add a layer that wastes this share, as a check.")
    ] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, max=20, help="Rounds of the calibration.")] = 5,
    engine_requests: Annotated[int, typer.Option(min=1, help="Of the traffic's first, with --engine.")] = 60,
    png: Annotated[Path | None, typer.Option(help="Draw the waterfall to this file.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the layers to this file.")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure; see HELP."""
    if png is not None:
        check_matplotlib()
    if engine and api is not None:
        raise UsageError("--engine runs a large model here: leave out --api", param="api")
    usd = settings.node_usd_per_hour or ASSUMED_USD_PER_HOUR
    prices = LeverPrices(node_hour=nano_of(usd), api=_api_prices(PriceBook(settings.prices), api))
    recorded = read_traffic(workload) if workload is not None else made_traffic(requests, per_second, history)
    order = StudyOrder(
        requests=recorded,
        prices=prices,
        config=large_config,
        planted=plant,
        risk=risk,
        repeats=repeats,
        engine_requests=engine_requests,
    )
    with status() as show:
        found = study(
            order,
            engine_options(settings),
            lambda scores, wrong, others: certified(scores, wrong, others, risk),
            lambda worse, count: upper_bound(worse, count, CONFIDENCE),
            engine=engine,
            progress=show,
        )
    if json:
        print_json(to_builtins(found))
    else:
        print_study(found, usd=usd, assumed=not settings.node_usd_per_hour, api=api)
    if png is not None:
        plot_bill(found.bill, png)
        note(f"wrote {png}")
    if csv_file is not None:
        _write_csv(found.bill, csv_file)
        note(f"wrote {csv_file}")


def certified(
    scores: Sequence[float], wrong: Sequence[bool], others: Sequence[float], risk: float
) -> Certified | None:
    """The thresholds come from `others`, whose labels nothing here sees: so every label certifies."""
    thresholds = thresholds_of(others, len(scores), risk=risk, confidence=CONFIDENCE)
    found = certify(scores, wrong, thresholds, risk=risk, confidence=CONFIDENCE)
    if found is None:
        return None
    return Certified(
        threshold=found.threshold,
        labeled=found.labeled,
        answered=found.answered,
        wrong=found.wrong,
        upper=found.upper,
    )


def _api_prices(prices: PriceBook, api: str | None) -> tuple[int, int, int] | None:
    """Nano-dollars per million tokens of input, cached input and output, today."""
    if api is None:
        return None
    provider, slash, model = api.partition("/")
    if not slash:
        raise UsageError(f"--api is {api!r}, it must be provider/model", param="api")
    try:
        rates = prices.rates(provider, model, STANDARD, time.time())
        fresh, output = rates.of("input").base, rates.of("output").base
    except Unpriced as reason:
        raise UsageError(f"--api {api}: {reason}", param="api") from None
    try:
        return fresh, rates.of("cache_read").base, output
    except Unpriced:
        return fresh, fresh, output


def _write_csv(bill: LeverBill, path: Path) -> None:
    """Levers in nano-dollars, with what they sum to."""
    header = (
        *("lever", "saves_nano_usd", "share", "low", "high", "alone_nano_usd", "removed_nano_usd"),
        *("bill_after_nano_usd", "worse_rate", "worse_upper", "worse_count"),
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for line in bill.lines:
            quality = line.quality
            writer.writerow(
                (
                    *(line.name, line.saves_nano, line.saves_nano / bill.base_nano, line.low, line.high),
                    *(line.alone_nano, line.removed_nano, line.stacked_nano),
                    *(("", "", "") if quality is None else (quality.rate, quality.upper, quality.count)),
                )
            )
