"""The values of settings: each reader takes what a flag, a variable or the file has, or says why not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def a_text(value: object) -> str:
    """Any text but the empty one."""
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty text")
    return value


def an_integer(low: int, high: int = 2**63 - 1) -> Callable[[object], int]:
    """Reads whole numbers from `low` to `high`."""

    def parse(value: object) -> int:
        wanted = f"an integer from {low:,}" + (f" to {high:,}" if high < 2**63 - 1 else " up")
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(wanted)
        return value

    return parse


def seconds(value: object) -> float:
    """A number of seconds, at most a day."""
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86_400:
        raise ValueError("a number of seconds from 0 to 86,400")
    return number


def idle_seconds(value: object) -> float:
    try:
        number = -1.0 if value == "never" else float(value) if isinstance(value, str | int | float) else -2.0
    except ValueError:
        number = -2.0
    if not -1 <= number <= 10 * 365 * 86_400:
        raise ValueError("a number of seconds, or never")
    return number


def a_switch(value: object) -> bool:
    """True or false, in some spellings."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    found = words.get(str(value).lower())
    if found is None:
        raise ValueError("true or false")
    return found


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def a_size(value: object) -> int:
    """Bytes, also as 4GiB or 512M."""
    text = str(value).strip().upper().removesuffix("B").removesuffix("I")
    number = text.rstrip("KMGT")
    unit = text[len(number) :]
    try:
        size = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        size = -1.0
    if not 0 < size < 2**63:
        raise ValueError("a size such as 4GiB, 512M or a number of bytes")
    return int(size)


def a_path(value: object) -> Path:
    """A path; ~ is the home folder."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("a path")
    return Path(value).expanduser()


def texts(value: object) -> tuple[str, ...]:
    """One or several texts separated by commas, or a list."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ValueError("one or several texts separated by commas")
    found = tuple(str(part).strip() for part in parts)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not all(found):
        raise ValueError("non-empty texts separated by commas")
    return found


def origins(value: object) -> tuple[str, ...]:
    found = texts(value)
    for origin in found:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin, re.IGNORECASE):
            raise ValueError("origins such as https://app.example:8443, without a path; or *")
    return found


def one_of(*choices: str) -> Callable[[object], str]:
    """Reads one of `choices`."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return str(value)

    return parse
