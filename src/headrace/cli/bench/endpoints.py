"""`headrace bench endpoints`: endpoints over time: latency, speed, errors, price, quality, honesty."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.cli.bench.endpoint_tables import print_summaries
from headrace.cli.bench.serve_tables import progress
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json
from headrace.config.extras import extra_module
from headrace.config.settings import Settings
from headrace.economy.prices import PriceBook
from headrace.economy.rates import Rates, Unpriced
from headrace.economy.tiers import STANDARD
from headrace.errors import UsageError
from headrace.storage.database import Database
from headrace.storage.probes import Probes
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.weights.hub.resolver import resolve

if TYPE_CHECKING:
    from headrace.providers.probe.endpoints import Endpoint, Price
    from headrace.providers.probe.run import ProbeOutcome
    from headrace.providers.probe.watch import Probed

HELP = """Measure endpoints over time: latency, output speed, errors, price, quality, and whether they do what
they say.

FILE is TOML with a table for each endpoint; the page Benchmarking describes it. Each probe asks new prompts
of every length, alone and several at the same time, 36 questions with checked answers, and tests whether
parameters take effect, whether the head of long prompts is read, and whether tokens are billed as the
endpoint's tokenizer counts them. No probe of an endpoint costs more than its budget_usd.

Results are kept for 15 days in the store, also where you interrupt a probe with Ctrl-C. Shown are medians of
the last 72 hours (of prompts from 100,000 tokens on: 14 days), as Artificial Analysis defines them.

\b
Examples:
  headrace bench endpoints endpoints.toml
  headrace bench endpoints endpoints.toml --every 3h
  headrace bench endpoints endpoints.toml --show --plot endpoints.png
"""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LEAST_EVERY_S = 10.0


@takes_settings("providers", "prices", "store")
def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The endpoints.")],
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Probe again and again, such as 30m or 3h.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Measure nothing, show what is kept.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Plot the kept probes.")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure and show; see HELP."""
    if plot is not None:
        check_matplotlib()
    every_s = None if every is None else _seconds(every)
    reader = extra_module("gateway", "headrace.providers.probe.endpoints", "aiohttp", "cryptography")
    endpoints: list[Endpoint] = reader.read_endpoints(file, settings.providers)
    database = Database(settings.store_file)
    try:
        interrupted = not show and _measure(endpoints, settings, database, every_s)
        _report(endpoints, Probes(database), plot, json)
    finally:
        database.close()
    if interrupted:
        raise typer.Exit(130)


def _seconds(text: str) -> float:
    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]]
    except (KeyError, ValueError):
        seconds = 0.0
    if not LEAST_EVERY_S <= seconds <= 86_400 * 14:
        raise UsageError(f"--every is {text!r}: a time from 10s to 14d, such as 30m or 3h", param="every")
    return seconds


def _measure(
    endpoints: Sequence[Endpoint], settings: Settings, database: Database, every_s: float | None
) -> bool:
    """Whether it was interrupted."""
    watch = extra_module("gateway", "headrace.providers.probe.watch")
    keys = extra_module("gateway", "headrace.providers.key_store").KeyStore(database)
    prices = PriceBook(settings.prices)
    probed: list[Probed] = [
        watch.Probed(one, _price(one, prices), _key_reader(keys, one), _counter(one.tokenizer))
        for one in endpoints
    ]
    try:
        with progress() as shown:
            asyncio.run(
                watch.probe_all(probed, Probes(database), shown, every_s=every_s, after_each=_say_skipped)
            )
    except KeyboardInterrupt:
        note("interrupted: what was measured is kept")
        return True
    return False


def _key_reader(keys: Any, endpoint: Endpoint) -> Callable[[], str | None]:
    return lambda: keys.key_of(endpoint.target.provider)


def _say_skipped(endpoint: Endpoint, outcome: ProbeOutcome) -> None:
    if outcome.skipped:
        note(
            f"note: {endpoint.name}: the budget of {endpoint.plan.budget_usd:g} dollars did not allow "
            f"{', '.join(outcome.skipped)}: raise budget_usd ({outcome.spent_usd:.4f} were spent)"
        )


def _price(endpoint: Endpoint, prices: PriceBook) -> Price:
    """Its price; UsageError where there is none, because then no budget can be kept."""
    if endpoint.price is not None:
        return endpoint.price
    target = endpoint.target
    kind = extra_module("gateway", "headrace.providers.probe.endpoints").Price
    try:
        rates = prices.rates(target.provider.name, target.model, STANDARD, time.time())
        return kind(_usd(rates, "input"), _usd(rates, "output"), _usd(rates, "cache_read"))
    except Unpriced as reason:
        raise UsageError(
            f"{endpoint.name} has no price, so that no budget can be kept: {reason}; or give "
            "price = { input = 0, output = 0 }, dollars per million tokens",
            param="file",
        ) from None


def _usd(rates: Rates, name: str) -> float:
    return rates.of(name).base / 1e9


def _counter(tokenizer: str | None) -> Callable[[str], int] | None:
    """A function that counts the tokens of a text."""
    if tokenizer is None:
        return None
    folder = resolve(tokenizer)
    if not folder.is_dir():
        raise UsageError(f"tokenizer {tokenizer!r} must be a folder, not a file", param="file")
    found = load_tokenizer(folder)
    return lambda text: len(found.encode(text, add_special=False, parse_special=False))


def _report(endpoints: Sequence[Endpoint], probes: Probes, plot: Path | None, json: bool) -> None:
    summary = extra_module("gateway", "headrace.providers.probe.summary")
    names = [one.name for one in endpoints]
    found = summary.summaries(probes, time.time(), names)
    if json:
        print_json(to_builtins(found))
    elif found:
        print_summaries(found)
    else:
        note("there are no probes of these endpoints yet")
    if plot is not None:
        rows = [row for row in probes.since(time.time() - summary.WINDOW_S) if row.endpoint in names]
        extra_module("gateway", "headrace.providers.probe.plot").plot_probes(rows, plot)
        note(f"wrote {plot}")
