"""The ledger beside what a provider billed: by day and model, and what neither explains."""

from __future__ import annotations

import calendar
import csv
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from headrace.economy.entries import Entry, day_of
from headrace.economy.ledger import Ledger
from headrace.economy.money import MAX_NANO, nano_of, shown_usd
from headrace.economy.rates import BillLine
from headrace.errors import UsageError

UNEXPLAINED = "unexplained"
NOON_S = 43_200.0
UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error)
"""What reading a statement raises where it is none."""
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "day": ("day", "date", "ChargePeriodStart"),
    "usd": ("usd", "cost", "amount", "BilledCost"),
    "model": ("model", "line_item", "SkuId"),
    "currency": ("currency", "BillingCurrency"),
}


class Billed(Struct, frozen=True, kw_only=True):
    """An amount that a provider billed for a day; `model` "" where the statement does not say."""

    day: str
    model: str
    nano_usd: int


class Difference(Struct, frozen=True, kw_only=True):
    """What was billed, what the ledger has, for a day and a model ("": all)."""

    day: str
    model: str
    billed_nano_usd: int
    booked_nano_usd: int

    @property
    def nano_usd(self) -> int:
        """What was billed beyond the ledger; negative where it has more."""
        return self.billed_nano_usd - self.booked_nano_usd


def compare(ledger: Ledger, provider: str, billed: list[Billed], first: str, last: str) -> list[Difference]:
    """Days from the first to the last, by model if the statement says models at all."""
    by_model = any(one.model for one in billed)
    stated, booked = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in billed:
        if first <= one.day <= last:
            stated[one.day, one.model] += one.nano_usd
    if any(abs(nano) > MAX_NANO for nano in stated.values()):
        raise UsageError(f"the statement has more than {shown_usd(MAX_NANO, 0)} of a day and a model")
    rows: list[Any] = []
    if ledger.database.exists:
        rows = ledger.database.query(
            """SELECT day, model, sum(nano_usd) FROM ledger_entries
            WHERE provider = ? AND day BETWEEN ? AND ? GROUP BY day, model""",
            (provider, first, last),
        )
    for day, model, nano in rows:
        booked[day, model if by_model else ""] += nano
    return [
        Difference(
            day=day, model=model, billed_nano_usd=stated[day, model], booked_nano_usd=booked[day, model]
        )
        for day, model in sorted(stated.keys() | booked.keys())
    ]


def write_differences(
    ledger: Ledger, provider: str, found: list[Difference], clock: Callable[[], float] = time.time
) -> int:
    """Book what is unexplained, so that ledger and statement are equal; how many entries."""
    off = [one for one in found if one.nano_usd]
    with ledger.database.transaction():
        for one in off:
            entry = Entry(
                kind="reconciliation",
                status="reported",
                reason="billed by the provider and not in the ledger, or the other way round",
                started_s=_noon(one.day),
                booked_s=clock(),
                provider=provider,
                model=one.model,
                price_source="statement of the provider",
            )
            ledger.add(entry, [BillLine(UNEXPLAINED, 1, one.nano_usd)])
    return len(off)


def _noon(day: str) -> float:
    return calendar.timegm(time.strptime(day, "%Y-%m-%d")) + NOON_S


def read_statement(path: Path) -> list[Billed]:
    """A CSV file with columns for day, usd and, if it has it, model; FOCUS's columns do, too. A `.json`
    file has a reply of OpenAI's or Anthropic's costs API. Raises UsageError."""
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix == ".json":
            reply = json.loads(text)
            found = list(billed_of_reply(reply))
            if reply.get("has_more"):
                raise ValueError("has_more says that it is one page of several: put all buckets into `data`")
            return found
        return list(_of_csv(text))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UNREADABLE as error:
        raise UsageError(
            f"{path} is no statement of costs ({error}): a CSV file has the columns day, usd and model"
        ) from None


def billed_of_reply(reply: Any) -> Iterator[Billed]:
    """Amounts of a page of OpenAI's `/v1/organization/costs` or Anthropic's `/v1/organizations/cost_report`.
    ValueError or KeyError where it is neither."""
    for bucket in reply["data"]:
        start = bucket["start_time"] if "start_time" in bucket else bucket["starting_at"]
        day = day_of(start) if isinstance(start, int | float) else _day(start)
        for result in bucket["results"]:
            amount = result["amount"]
            if isinstance(amount, dict):  # OpenAI: dollars, and a line item such as "gpt-4o, input"
                fields = cast("dict[str, Any]", amount)
                _check_currency(fields["currency"])
                nano, model = nano_of(fields["value"]), str(result.get("line_item") or "").partition(",")[0]
            else:  # Anthropic: cents as text
                _check_currency(result["currency"])
                nano, model = (
                    nano_of(amount) // 100,
                    str(result.get("model") or result.get("description") or ""),
                )
            yield Billed(day=day, model=model.strip(), nano_usd=nano)


def _check_currency(name: object) -> None:
    if str(name).upper() != "USD":
        raise ValueError(f"amounts are in {name}, only USD are read")


def _day(text: str) -> str:
    day = text[:10]
    time.strptime(day, "%Y-%m-%d")  # ValueError where it is none
    return day


def _of_csv(text: str) -> Iterator[Billed]:
    rows = csv.reader(io.StringIO(text, newline=""))
    head = next(rows, list[str]())
    places = {
        kind: next((head.index(name) for name in names if name in head), None)
        for kind, names in _COLUMNS.items()
    }
    day, usd = places["day"], places["usd"]
    if day is None or usd is None:
        raise ValueError(f"its columns are {', '.join(head) or 'none'}")
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(head):
            raise ValueError(f"row {number} has {len(row)} values, row 1 has {len(head)}")
        model = "" if places["model"] is None else row[places["model"]]
        try:
            if places["currency"] is not None:
                _check_currency(row[places["currency"]])
            yield Billed(day=_day(row[day]), model=model, nano_usd=nano_of(row[usd]))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
