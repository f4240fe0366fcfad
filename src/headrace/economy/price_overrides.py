"""Prices from the settings: `[prices."provider/model"]`, which go before those of the price list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, cast, get_args

from msgspec import Struct

from headrace.config.names import nearest
from headrace.economy.quantities import CLASSES, REQUEST
from headrace.economy.rates import Rates, UnitPrice, rate_of, unit_of
from headrace.economy.tiers import STANDARD, Tier
from headrace.errors import UsageError

SOURCE = "settings"
_NAMES = (*CLASSES, REQUEST)
_KEYS = ("from", "processing", "tiers")


class Override(Struct, frozen=True):
    """A price that holds from a time on, for a way of processing. `pattern` is `provider/model`, with `*`."""

    pattern: str
    processing: Tier
    from_unix_s: float
    rates: Rates

    def holds(self, name: str, processing: Tier, unix_s: float) -> bool:
        """Whether it is the price of this model, processed so, at that time."""
        return (
            processing == self.processing
            and unix_s >= self.from_unix_s
            and (name == self.pattern or fnmatchcase(name, self.pattern))
        )


def read_overrides(table: Mapping[str, object] | None) -> tuple[Override, ...]:
    """The overrides of the setting `prices`. Raises UsageError that names what is wrong.

    A name without `*` goes before patterns, then what begins later, then what is written first.
    """
    found = [one for name, entry in (table or {}).items() for one in _overrides(name, entry)]
    return tuple(sorted(found, key=lambda one: ("*" in one.pattern, -one.from_unix_s)))


def override_of(overrides: Sequence[Override], name: str, processing: Tier, unix_s: float) -> Rates | None:
    """The rates that hold for `provider/model`, if the settings have any."""
    return next((one.rates for one in overrides if one.holds(name, processing, unix_s)), None)


def _overrides(name: str, entry: object) -> list[Override]:
    where = f'[prices."{name}"]'
    if "/" not in name:
        raise UsageError(f'{where}: the name is "provider/model", such as "openai/gpt-5"', param="prices")
    entries = cast("list[object]", entry) if isinstance(entry, list) else [entry]
    return [_override(name, where, one) for one in entries]


def _override(name: str, where: str, entry: object) -> Override:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is a table of prices, or a list of such tables", param="prices")
    given = dict(cast("dict[str, Any]", entry))
    from_unix_s = _start(where, given.pop("from", None))
    processing = given.pop("processing", STANDARD)
    if processing not in get_args(Tier):
        raise UsageError(
            f"{where}: processing is {processing!r}, it must be one of {', '.join(get_args(Tier))}",
            param="prices",
        )
    tiers = _tiers(where, given.pop("tiers", []))
    if not given:
        raise UsageError(f"{where} has no price: give input and output, dollars per million", param="prices")
    rates = {key: UnitPrice(_rate(where, key, value)) for key, value in given.items()}
    for start, key, rate in tiers:
        if key not in rates:
            raise UsageError(
                f"{where}: a tier has a price for {key}, the table itself has none", param="prices"
            )
        rates[key] = UnitPrice(rates[key].base, (*rates[key].tiers, (start, rate)))
    return Override(name, processing, from_unix_s, Rates(rates, SOURCE))


def _start(where: str, value: object) -> float:
    if value is None:
        return 0.0
    try:
        day = value if isinstance(value, date) else date.fromisoformat(str(value))
    except ValueError:
        raise UsageError(
            f"{where}: from is {value!r}, it must be a day such as 2026-11-01", param="prices"
        ) from None
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def _tiers(where: str, value: object) -> list[tuple[int, str, int]]:
    """(start, class, rate), by start, of `tiers = [{above = 200_000, input = 6}]`."""
    found: list[tuple[int, str, int]] = []
    for entry in cast("list[object]", value) if isinstance(value, list) else [value]:
        prices = dict(cast("dict[str, Any]", entry)) if isinstance(entry, dict) else {}
        above = prices.pop("above", None)
        if not isinstance(above, int) or isinstance(above, bool) or above < 0 or not prices:
            raise UsageError(
                f"{where}: tiers is a list of tables such as {{above = 200_000, input = 6}}", param="prices"
            )
        found += [(above, key, _rate(where, key, price)) for key, price in prices.items()]
    return sorted(found)


def _rate(where: str, key: str, value: object) -> int:
    if key not in _NAMES:
        raise UsageError(f"{where}: unknown price {key!r}{nearest(key, [*_NAMES, *_KEYS])}", param="prices")
    wanted = f"{where}: {key} is {value!r}, it must be dollars per {unit_of(key):,}, such as 2.5"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(wanted, param="prices")
    try:
        return rate_of(Decimal(str(value)), unit_of(key))
    except (ValueError, ArithmeticError):
        raise UsageError(wanted, param="prices") from None
