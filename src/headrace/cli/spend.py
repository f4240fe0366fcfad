"""`headrace spend`: what requests cost, and whether that is right."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table
from headrace.config.settings import Settings
from headrace.economy.budget_settings import read_budgets
from headrace.economy.budgets import Budgets
from headrace.economy.check import check
from headrace.economy.cost_reports import REPORTS, fetch_costs
from headrace.economy.focus import write_focus
from headrace.economy.ledger import Ledger
from headrace.economy.money import plain_usd, shown_usd
from headrace.economy.prices import PriceBook
from headrace.economy.reconcile import Difference, compare, read_statement, write_differences
from headrace.economy.report import FIRST_DAY, LAST_DAY, By, SpendRow, spend_by, total_of
from headrace.economy.rerate import rerate
from headrace.errors import UsageError
from headrace.storage.database import Database
from headrace.storage.ledger_store import ledger_store

HELP = """Show what requests cost, from the ledger in the store.

Without ACTION: sums by --by, of the days from --since to --until (UTC). ESTIMATED is the part that is an
upper bound or counted by this server, because the provider reported no usage. UNPRICED attempts are in no
sum: their price is not known.

check: whether all entries add up; exit code 1 if anything is wrong. rerate: compute costs again with the
prices known now for the time of each entry; --write adds corrections. reconcile SOURCE: compare with what the
provider billed: openai or anthropic (administrator's key in OPENAI_ADMIN_KEY or ANTHROPIC_ADMIN_KEY), or a
CSV file with the columns day, usd and model; with --write the difference is booked as unexplained. export:
rows in the columns of FOCUS 1.2.

\b
Examples:
  headrace spend --by model --since 2026-11-01
  headrace spend check
  headrace spend reconcile openai --since 2026-11-01 --until 2026-11-30
  headrace spend reconcile invoice.csv --provider mistral
  headrace spend export > november.csv
"""

BAR, LEAST_BAR = 20, 5  # characters of the longest bar: where there is room, and at least


class SpendAction(StrEnum):
    """Subcommands."""

    SHOW = "show"
    CHECK = "check"
    RERATE = "rerate"
    RECONCILE = "reconcile"
    EXPORT = "export"


class SpendBy(StrEnum):
    """What sums are made by."""

    KEY = "key"
    MODEL = "model"
    PROVIDER = "provider"
    ROUTE = "route"
    DAY = "day"
    CLASS = "class"
    STATUS = "status"


_FLAGS: Mapping[SpendAction, frozenset[str]] = {
    SpendAction.SHOW: frozenset({"by", "since", "until", "csv", "json"}),
    SpendAction.CHECK: frozenset({"json"}),
    SpendAction.RERATE: frozenset({"since", "write", "json"}),
    SpendAction.RECONCILE: frozenset({"since", "until", "write", "json"}),
    SpendAction.EXPORT: frozenset({"since", "until"}),
}
"""What each subcommand takes; reconcile also --provider or --url, by its source."""


@takes_settings("store", "prices", "budgets")
def command(
    action: Annotated[SpendAction, typer.Argument(metavar="ACTION", help="Subcommand.")] = SpendAction.SHOW,
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="For reconcile: openai, anthropic or a file.")
    ] = None,
    by: Annotated[SpendBy | None, typer.Option(help="What sums are made by. [default: model]")] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="First day, such as 2026-11-01.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Last day.")] = None,
    provider: Annotated[str | None, typer.Option(help="For reconcile FILE: whose statement it is.")] = None,
    url: Annotated[str | None, typer.Option(help="For reconcile: another address of the report.")] = None,
    write: Annotated[bool, typer.Option("--write", help="For rerate and reconcile: book it.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run the subcommand; see HELP."""
    first, last = _day(since, "--since", FIRST_DAY), _day(until, "--until", LAST_DAY)
    if source is not None and action is not SpendAction.RECONCILE:
        raise UsageError(f"spend {action.value} takes no {source!r}: see `headrace spend --help`")
    given = {"by": by, "since": since, "until": until, "provider": provider, "url": url}
    _check_flags(action, source, given | {"write": write, "csv": as_csv, "json": json})
    by = by or SpendBy.MODEL
    database = ledger_store(Database(settings.store_file), settings.ledger)
    try:
        ledger, prices = Ledger(database), PriceBook(settings.prices)
        if action is SpendAction.CHECK:
            _check(ledger, Budgets(database, read_budgets(settings.budgets)), prices, json)
        elif action is SpendAction.RERATE:
            _rerate(ledger, prices, first, write, json)
        elif action is SpendAction.RECONCILE:
            _reconcile(ledger, source, provider, url, first, last, write, json)
        elif action is SpendAction.EXPORT:
            note(f"{write_focus(database, sys.stdout, first, last):,} rows")
        else:
            rows = spend_by(database, by.value, first, last)
            # an attempt has several classes, so that counts of classes have no sum
            apart = rows if by is not SpendBy.CLASS else spend_by(database, "model", first, last)
            _show(rows, total_of(apart), by.value, json, as_csv)
    finally:
        database.close()


def _check_flags(action: SpendAction, source: str | None, given: Mapping[str, object]) -> None:
    """UsageError where a flag would have no effect."""
    taken = _FLAGS[action]
    if action is SpendAction.RECONCILE:
        taken |= {"url"} if source in REPORTS else {"provider"}
    for name in (name for name, value in given.items() if value and name not in taken):
        what = f"{action.value} {source}" if source else action.value
        flags = ", ".join(f"--{one}" for one in sorted(taken))
        raise UsageError(f"--{name} has no effect on spend {what}, which takes {flags}", param=name)


def _day(text: str | None, flag: str, otherwise: str) -> str:
    if text is None:
        return otherwise
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return datetime.strptime(text, "%Y-%m-%d").strftime("%Y-%m-%d")
    except ValueError:
        pass
    raise UsageError(f"{flag} is {text!r}, it must be a day such as 2026-11-01", param=flag.lstrip("-"))


def _show(rows: list[SpendRow], total: SpendRow, by: By, json: bool, as_csv: bool) -> None:
    if json:
        print_json([_plain(row) for row in rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([by, *SpendRow.__struct_fields__[1:4], "usd", "estimated_usd", "unpriced", "lost"])
        writer.writerows([_plain(row).values() for row in rows])
    elif not rows:
        print("nothing was spent")
    else:
        header = (by.upper(), "ATTEMPTS", "INPUT", "OUTPUT", "COST", "ESTIMATED", "UNPRICED", "LOST")
        lines = [_line(row) for row in ([*rows, total] if len(rows) > 1 else rows)]
        width = _bar_width([header, *lines])
        most = max(row.nano_usd for row in rows)
        bars = [_bar(row.nano_usd, most, width) for row in rows] + [""]
        print_table([(*line, bar) for line, bar in zip(lines, bars, strict=False)], header=(*header, ""))


def _plain(row: SpendRow) -> dict[str, Any]:
    values = to_builtins(row)
    usd = {f"{name}usd": plain_usd(values.pop(f"{name}nano_usd")) for name in ("", "estimated_")}
    unpriced, lost = values.pop("unpriced"), values.pop("lost")
    return values | usd | {"unpriced": unpriced, "lost": lost}


def _line(row: SpendRow) -> tuple[str, ...]:
    counts = (row.attempts, row.input_tokens, row.output_tokens)
    rest = (row.unpriced, row.lost)
    return (
        row.name or "(none)",
        *(f"{count:,}" for count in counts),
        shown_usd(row.nano_usd),
        shown_usd(row.estimated_nano_usd) if row.estimated_nano_usd else "",
        *(f"{count:,}" if count else "" for count in rest),
    )


def _bar_width(lines: Sequence[Sequence[str]]) -> int:
    """What a terminal has left beside the columns, so that no line is broken; 0 where that shows nothing."""
    if not sys.stdout.isatty():
        return BAR
    taken = sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True))
    room = min(BAR, shutil.get_terminal_size().columns - taken)
    return room if room >= LEAST_BAR else 0


def _bar(nano_usd: int, most: int, width: int) -> str:
    return "█" * round(width * nano_usd / most) if most > 0 and nano_usd > 0 else ""


def _check(ledger: Ledger, budgets: Budgets, prices: PriceBook, json: bool) -> None:
    found = check(ledger, budgets, prices)
    if json:
        print_json(to_builtins(found))
    else:
        for line in found.notes:
            print(f"note: {line}")
        for line in found.problems:
            print(f"off: {line}")
        state = f"{len(found.problems):,} things are off" if found.problems else "all adds up"
        print(f"{found.entries:,} entries, {found.postings:,} postings: {state}")
    if found.problems:
        raise typer.Exit(1)


def _rerate(ledger: Ledger, prices: PriceBook, since: str, write: bool, json: bool) -> None:
    found = rerate(ledger, prices, since, write=write) if ledger.database.exists else []
    if json:
        print_json(to_builtins(found))
        return
    if found:
        print_table(
            [
                (
                    str(one.entry),
                    one.day,
                    one.name,
                    shown_usd(one.before_nano_usd),
                    shown_usd(one.after_nano_usd),
                )
                for one in found
            ],
            header=("ENTRY", "DAY", "MODEL", "BEFORE", "NOW"),
        )
    if not found:
        print(f"no entry costs anything else by {prices.version}")
        return
    change = sum(one.after_nano_usd - one.before_nano_usd for one in found)
    more = f"{shown_usd(abs(change))} {'less' if change < 0 else 'more'}"
    print(f"{len(found):,} entries cost {more} by {prices.version}")
    if not write:
        print("nothing is booked: add --write for that")


def _reconcile(
    ledger: Ledger,
    source: str | None,
    provider: str | None,
    url: str | None,
    first: str,
    last: str,
    write: bool,
    json: bool,
) -> None:
    if source is None:
        raise UsageError(f"reconcile needs a SOURCE: {', '.join(REPORTS)} or a file")
    if source in REPORTS:
        today = datetime.now(UTC)
        first = f"{today:%Y-%m-01}" if first == FIRST_DAY else first
        last = f"{today:%Y-%m-%d}" if last == LAST_DAY else last
        owner, billed = source, fetch_costs(source, first, last, url)
    elif provider is None:
        raise UsageError("reconcile FILE needs --provider: whose statement it is", param="provider")
    else:
        owner, billed = provider, read_statement(Path(source))
        first = min((one.day for one in billed), default=first) if first == FIRST_DAY else first
        last = max((one.day for one in billed), default=last) if last == LAST_DAY else last
    found = compare(ledger, owner, billed, first, last)
    if not any(one.booked_nano_usd for one in found):
        note(f"note: the ledger has nothing of {owner!r} from {first} to {last}")
    if json:
        print_json([to_builtins(one) | {"nano_usd": one.nano_usd} for one in found])
    else:
        _print_differences(found)
    if write:
        note(f"{write_differences(ledger, owner, found):,} entries are booked as unexplained")


def _print_differences(found: list[Difference]) -> None:
    print_table(
        [
            (
                one.day,
                one.model or "(all)",
                *map(shown_usd, (one.billed_nano_usd, one.booked_nano_usd, one.nano_usd)),
            )
            for one in found
        ],
        header=("DAY", "MODEL", "BILLED", "LEDGER", "UNEXPLAINED"),
    )
    print(f"unexplained: {shown_usd(sum(one.nano_usd for one in found))}")
