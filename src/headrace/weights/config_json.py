"""Typed reading of config.json: a number is a number, or the error names the field and what it holds."""

from __future__ import annotations

import math
from typing import cast

from headrace.errors import CorruptFile

Config = dict[str, object]


def integer(
    config: Config, field: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1
) -> int:
    """An integer within [minimum, maximum]. `field` may be dotted (`rope_scaling.factor`); absent or null
    gives `default`, or CorruptFile where there is none."""
    value = find(config, field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise _refused(field, value, f"an integer from {minimum:,} to {maximum:,}")
    return value


def number(config: Config, field: str, default: float | None = None, *, minimum: float = -math.inf) -> float:
    """A finite number not below `minimum`; absence as in `integer`."""
    value = find(config, field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value < math.inf:
        raise _refused(field, value, f"a number of at least {minimum}")
    return float(value)


def boolean(config: Config, field: str, default: bool) -> bool:
    """true or false; absent or null gives `default`."""
    value = find(config, field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _refused(field, value, "true or false")
    return value


def text(config: Config, field: str, default: str | None = None) -> str:
    """A string; absence as in `integer`."""
    value = find(config, field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise _refused(field, value, "a string")
    return value


def texts(config: Config, field: str) -> tuple[str, ...] | None:
    """A list of strings, or None where it is absent."""
    value = find(config, field)
    if value is None:
        return None
    entries = cast(list[object], value) if isinstance(value, list) else [None]
    if not all(isinstance(entry, str) for entry in entries):
        raise _refused(field, value, "a list of strings")
    return tuple(str(entry) for entry in entries)


def find(config: Config, field: str) -> object:
    """The raw value of a (dotted) field, None where it is absent."""
    value: object = config
    for part in field.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _refused(field, value, "inside an object")
        value = cast("dict[str, object]", value).get(part)
    return value


def _refused(field: str, value: object, wanted: str) -> CorruptFile:
    if value is None:
        return CorruptFile(f"config.json has no {field!r}, which must be {wanted}: complete the file")
    return CorruptFile(f"config.json has {field!r} = {repr(value)[:80]}, which must be {wanted}: correct it")
