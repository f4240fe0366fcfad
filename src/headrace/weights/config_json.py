"""Typed reading of config.json: a number is a number, or the error names the field and what it holds."""

from __future__ import annotations

import math
import sys
from typing import cast

from headrace.errors import CorruptFile

Config = dict[str, object]
_LARGEST = sys.float_info.max


def integer(
    config: Config, field: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1
) -> int:
    """An integer within [minimum, maximum]. `field` may be dotted (`rope_scaling.factor`); absent or null
    gives `default`, or CorruptFile where there is none."""
    value = find(config, field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise refused(field, value, f"an integer from {minimum:,} to {maximum:,}")
    return value


def number(config: Config, field: str, default: float | None = None, *, minimum: float = -math.inf) -> float:
    """A finite number not below `minimum`; absence as in `integer`."""
    value = find(config, field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= _LARGEST:
        raise refused(field, value, f"a number of at least {minimum}")
    return float(value)


def boolean(config: Config, field: str, default: bool) -> bool:
    """true or false; absent or null gives `default`."""
    value = find(config, field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refused(field, value, "true or false")
    return value


def text(config: Config, field: str, default: str | None = None) -> str:
    """A string; absence as in `integer`."""
    value = find(config, field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise refused(field, value, "a string")
    return value


def texts(config: Config, field: str) -> tuple[str, ...] | None:
    """A list of strings, or None where it is absent."""
    value = find(config, field)
    if value is None:
        return None
    entries = cast("list[object]", value) if isinstance(value, list) else [None]
    found = tuple(entry for entry in entries if isinstance(entry, str))
    if len(found) != len(entries):
        raise refused(field, cast("object", value), "a list of strings")
    return found


def numbers(config: Config, field: str, count: int, *, above: float) -> tuple[float, ...]:
    """A list of exactly `count` finite numbers, each greater than `above`."""
    value = find(config, field)
    entries = cast("list[object]", value) if isinstance(value, list) else []
    found = tuple(float(entry) for entry in entries if isinstance(entry, int | float))
    if len(entries) != count or len(found) != count or not all(above < entry <= _LARGEST for entry in found):
        raise refused(field, cast("object", value), f"a list of {count:,} numbers greater than {above}")
    return found


def integers(config: Config, field: str) -> tuple[int, ...] | None:
    """A list of integers, or None where it is absent."""
    value = find(config, field)
    if value is None:
        return None
    entries = cast("list[object]", value) if isinstance(value, list) else [None]
    found = tuple(entry for entry in entries if isinstance(entry, int))
    if len(found) != len(entries):
        raise refused(field, cast("object", value), "a list of integers")
    return found


def find(config: Config, field: str) -> object:
    """The raw value of a (dotted) field, None where it is absent."""
    first, _, rest = field.partition(".")
    value = config.get(first)
    if not rest or value is None:
        return value
    if isinstance(value, dict):
        return find(cast("dict[str, object]", value), rest)
    raise refused(first, value, "an object")


def refused(field: str, value: object, wanted: str) -> CorruptFile:
    """The error for a field that is absent (None) or not `wanted`."""
    if value is None:
        return CorruptFile(f"config.json has no {field!r}, which must be {wanted}: complete the file")
    return CorruptFile(f"config.json has {field!r} = {repr(value)[:80]}, which must be {wanted}: correct it")
