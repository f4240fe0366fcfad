"""Budgets as the settings describe them: `[budgets.NAME]`, whom and what they bound, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from headrace.config.names import nearest
from headrace.economy.money import nano_of
from headrace.errors import UsageError

Each = Literal["key", "provider", "target", "route"]
Unpriced = Literal["refuse", "allow"]
Reserve = Literal["exact", "estimate"]
_LIMITS: Mapping[str, str] = {
    "usd_per_request": "request",
    "usd_per_day": "day",
    "usd_per_month": "month",
    "usd": "total",
}
_PATTERNS = ("keys", "routes", "targets")
_KEYS = (*_LIMITS, *_PATTERNS, "each", "unpriced", "reserve")


class Attempted(Struct, frozen=True, kw_only=True):
    """What a budget looks at: who attempts what, and when (seconds since 1970)."""

    key: str
    route: str
    target: str
    provider: str
    model: str
    request_id: str
    unix_s: float


class Limit(Struct, frozen=True):
    """The most that one budget allows in one of its periods; "" is the attempt alone."""

    budget: str
    period: str
    nano_usd: int


class SpendBudget(Struct, frozen=True):
    """A budget. It bounds what matches all its patterns; with `each`, apart for each key, provider, target
    or route. `limits` are nano-dollars by kind of period. `unpriced`: what becomes of those without a
    price. `reserve`: whether what is set aside is a true bound, or an estimate that may be too small."""

    name: str
    limits: Mapping[str, int]
    keys: tuple[str, ...] = ("*",)
    routes: tuple[str, ...] = ("*",)
    targets: tuple[str, ...] = ("*",)
    each: Each | None = None
    unpriced: Unpriced = "refuse"
    reserve: Reserve = "exact"

    def covers(self, one: Attempted) -> bool:
        """Whether an attempt counts for it."""
        return (
            _matches(self.keys, one.key)
            and _matches(self.routes, one.route)
            and _matches(self.targets, one.target, f"{one.provider}/{one.model}")
        )

    def limits_of(self, one: Attempted) -> list[Limit]:
        """Its limits for an attempt, each in the period into which the attempt falls."""
        name = self.name if self.each is None else f"{self.name}/{getattr(one, self.each)}"
        at = datetime.fromtimestamp(one.unix_s, UTC)
        periods = {
            "request": f"request {one.request_id}" if one.request_id else "",
            "day": at.strftime("%Y-%m-%d"),
            "month": at.strftime("%Y-%m"),
            "total": "total",
        }
        return [Limit(name, periods[kind], most) for kind, most in self.limits.items()]


def _matches(patterns: tuple[str, ...], *names: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def read_budgets(table: Mapping[str, object] | None) -> tuple[SpendBudget, ...]:
    """The budgets of the setting `budgets`. Raises UsageError that names what is wrong."""
    return tuple(_budget(name, entry) for name, entry in (table or {}).items())


def _budget(name: str, entry: object) -> SpendBudget:
    where = f"[budgets.{name}]"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is a table, such as usd_per_month = 200", param="budgets")
    given = cast("dict[str, Any]", entry)
    for key in given:
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r}{nearest(key, _KEYS)}", param="budgets")
    if "/" in name:
        raise UsageError(f"{where}: the name of a budget has no '/'", param="budgets")
    limits = {period: _amount(where, key, given[key]) for key, period in _LIMITS.items() if key in given}
    if not limits:
        raise UsageError(f"{where} has no limit: give {', '.join(_LIMITS)}", param="budgets")
    return SpendBudget(
        name,
        limits,
        *(_patterns(where, key, given.get(key, ["*"])) for key in _PATTERNS),
        each=_choice(where, "each", given.get("each"), (None, *get_args(Each))),
        unpriced=_choice(where, "unpriced", given.get("unpriced", "refuse"), get_args(Unpriced)),
        reserve=_choice(where, "reserve", given.get("reserve", "exact"), get_args(Reserve)),
    )


def _amount(where: str, key: str, value: object) -> int:
    try:
        nano = nano_of(value)
    except ValueError:
        nano = -1
    if nano < 0:
        raise UsageError(
            f"{where}: {key} is {value!r}, it must be dollars, such as 200 or 0.5", param="budgets"
        )
    return nano


def _patterns(where: str, key: str, value: object) -> tuple[str, ...]:
    found = cast("list[object]", value) if isinstance(value, list) else [value]
    if not found or not all(isinstance(one, str) and one for one in found):
        raise UsageError(f'{where}: {key} is a list of names, such as ["alice", "ci-*"]', param="budgets")
    return tuple(cast("list[str]", found))


def _choice(where: str, key: str, value: object, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        names = ", ".join(one for one in choices if one)
        raise UsageError(f"{where}: {key} is {value!r}, it must be one of {names}", param="budgets")
    return value
