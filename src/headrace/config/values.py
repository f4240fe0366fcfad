"""The values of settings: each kind reads what a flag, a variable or the file has, or says why not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct

MAX_INTEGER = 2**63 - 1


class Values(Struct, frozen=True):
    """A kind of values: `parse` reads one or raises ValueError that says what was expected.

    `types` are those of a value that is read; `shown` is the placeholder in help texts.
    """

    shown: str
    parse: Callable[[object], object]
    types: tuple[type, ...]
    choices: tuple[str, ...] = ()

    def check(self, value: object) -> None:
        """Raise ValueError, which says what was expected, where `value` is none of these values."""
        if not isinstance(value, self.types):
            value = None
        self.parse(value)


def integer(low: int, high: int = MAX_INTEGER, unit: str = "count") -> Values:
    """Whole numbers from `low` to `high`."""

    def parse(value: object) -> int:
        wanted = f"an integer from {low:,}" + (f" to {high:,}" if high < MAX_INTEGER else " up")
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(wanted)
        return value

    return Values(unit, parse, (int,))


def one_of(literal: Any) -> Values:
    """The texts of a Literal type."""
    choices: tuple[str, ...] = get_args(literal)

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return str(value)

    return Values("|".join(choices), parse, (str,), choices)


def text(shown: str) -> Values:
    """Any text but the empty one."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("a non-empty text")
        return value

    return Values(shown, parse, (str,))


def _object(value: object) -> Mapping[str, object]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            value = None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return cast("Mapping[str, object]", value)


def path(shown: str) -> Values:
    """A path; ~ is the home folder."""

    def parse(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError("a path")
        return Path(value).expanduser()

    return Values(shown, parse, (Path,))


def _seconds(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86_400:
        raise ValueError("a number of seconds from 0 to 86,400")
    return number


def _idle_seconds(value: object) -> float:
    try:
        number = -1.0 if value == "never" else float(value) if isinstance(value, str | int | float) else -2.0
    except ValueError:
        number = -2.0
    if not -1 <= number <= 10 * 365 * 86_400:
        raise ValueError("a number of seconds, or never")
    return number


def _switch(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    found = words.get(str(value).lower())
    if found is None:
        raise ValueError("true or false")
    return found


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _size(value: object) -> int:
    name = str(value).strip().upper().removesuffix("B").removesuffix("I")
    number = name.rstrip("KMGT")
    unit = name[len(number) :]
    try:
        size = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        size = -1.0
    if isinstance(value, bool) or not 0 < size < 2**63:
        raise ValueError("a size such as 4GiB, 512M or a number of bytes")
    return int(size)


def _texts(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ValueError("one or several texts separated by commas")
    found = tuple(str(part).strip() for part in parts)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not all(found):
        raise ValueError("non-empty texts separated by commas")
    return found


LOCALHOST = "localhost"
"""As an origin: every page of this machine's loopback addresses, at any port."""


def _origins(value: object) -> tuple[str, ...]:
    found = _texts(value)
    for origin in found:
        if origin not in ("*", LOCALHOST) and not re.fullmatch(
            r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin, re.IGNORECASE
        ):
            raise ValueError("origins such as https://app.example:8443, without a path; localhost; or *")
    return found


def texts(shown: str) -> Values:
    """One or several texts separated by commas, or a list of them."""
    return Values(shown, _texts, (tuple,))


def number(low: float, high: float, unit: str = "number") -> Values:
    """Numbers from `low` to `high`."""

    def parse(value: object) -> float:
        try:
            found = float(value) if isinstance(value, str | int | float) else math.nan
        except (ValueError, OverflowError):  # a whole number of hundreds of digits
            found = math.nan
        if isinstance(value, bool) or not low <= found <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return found

    return Values(unit, parse, (int, float))


_SLO_MS = {"ttft_ms": 3_600_000.0, "tpot_ms": 60_000.0}


def _slo(value: object) -> Mapping[str, float]:
    """Targets in milliseconds: `{ttft_ms = 200, tpot_ms = 50}`, or as text ttft_ms=200,tpot_ms=50."""
    given: Any = value
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")] if value.strip()[:1] != "{" else None
        given = _object(value) if parts is None else {name.strip(): text.strip() for name, _, text in parts}
    wanted = "targets such as ttft_ms=200,tpot_ms=50"
    if not isinstance(given, dict) or not given or not set(given) <= set(_SLO_MS):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(wanted)
    targets = cast("dict[str, object]", given)
    return {name: cast(float, number(1, _SLO_MS[name]).parse(target)) for name, target in targets.items()}


def _quality(value: object) -> Mapping[str, float]:
    """A bound: `{max_kl = 0.02}`, or as text max_kl=0.02."""
    given: Any = value
    if isinstance(value, str):
        name, _, text = value.partition("=")
        given = {name.strip(): text.strip()}
    if not isinstance(given, dict) or set(given) != {"max_kl"}:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError("a bound such as max_kl=0.02")
    bound = cast("dict[str, object]", given)["max_kl"]
    return {"max_kl": cast(float, number(0, 1000, "nats").parse(bound))}


def _paths(value: object) -> Mapping[str, object]:
    """NAME=PATH[,NAME=PATH], or a table."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if isinstance(value, list):  # of a flag that was given several times
        return {name: place for part in cast("list[object]", value) for name, place in _paths(part).items()}
    if not isinstance(value, str):
        raise ValueError("paths by name, such as sql=./adapters/sql")
    if value.startswith("{"):
        return _object(value)
    found: dict[str, object] = {}
    for part in value.split(","):
        name, equals, place = part.strip().partition("=")
        if not name or not equals or not place:
            raise ValueError("paths by name, such as sql=./adapters/sql,shell=./adapters/shell.gguf")
        found[name] = place
    return found


PATHS = Values("name=path[,name=path]", _paths, (dict,))
SECONDS = Values("seconds", _seconds, (int, float))
"""A number of seconds, at most a day."""
IDLE_SECONDS = Values("seconds", _idle_seconds, (int, float))
"""A number of seconds, or `never`, which is read as -1."""
SWITCH = Values("true|false", _switch, (bool,))
"""True or false, in some spellings."""
SIZE = Values("size", _size, (int,))
"""Bytes, also as 4GiB or 512M."""
ORIGINS = Values("origin[,origin]", _origins, (tuple,))
"""Web origins, `localhost` for pages of this machine, or `*`."""
OBJECT = Values("json", _object, (dict,))
SLO = Values("ttft_ms=N,tpot_ms=N", _slo, (dict,))
"""Targets of a model's requests, in milliseconds."""
QUALITY = Values("max_kl=N", _quality, (dict,))
"""What a form of a model may lose."""
