"""A name among those that are valid, or the error that suggests the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from headrace.errors import UsageError


def known_name(name: str, names: Sequence[str], message: str) -> str:
    """`name`, or UsageError with `message` and the nearest of `names`."""
    if name in names:
        return name
    raise UsageError(message + nearest(name, names), param=name)


def nearest(name: str, names: Sequence[str]) -> str:
    """`: did you mean 'x'?` for the name most like `name`, or all names where none is alike."""
    return suggestion(name, names) or ": valid are " + ", ".join(names)


def suggestion(name: str, names: Sequence[str], *, cutoff: float = 0.6) -> str:
    """`: did you mean 'x'?` for the name most like `name`; empty where none is alike by `cutoff`, 0 to 1."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f": did you mean {close[0]!r}?" if close else ""
