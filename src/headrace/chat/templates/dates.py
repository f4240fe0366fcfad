"""The date that chat templates show: today's, or the one that a request gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from headrace.errors import TemplateError

DATE = "date_string"
"""The variable of the date; a request fixes the date by it."""
CLOCK = "strftime_now"
"""The function that formats the current time."""
DATETIME = "datetime"
"""The date in the templates of Firefunction."""
_USUAL = "%d %b %Y"  # how templates with the variable write their own default
_FORMATS = (_USUAL, "%d %B %Y", "%B %d, %Y", "%b %d, %Y", "%d.%m.%Y")


def date_inputs(variables: Mapping[str, Any], reads: frozenset[str], now: datetime) -> dict[str, Any]:
    """What a template reads of the date: DATE, where it is not in `variables`, and CLOCK.

    With a date in `variables`, CLOCK formats that day's first moment.
    """
    given = variables.get(DATE)
    inputs: dict[str, Any] = {CLOCK: _clock(now, given)}
    if DATE in reads and given is None:
        inputs[DATE] = now.strftime(_USUAL)
    if DATETIME in reads and DATETIME not in variables:
        inputs[DATETIME] = (now if given is None else _parsed(given)).strftime("%b %d %Y")
    return inputs


def _clock(now: datetime, given: object) -> Callable[[object], str]:
    def format_time(pattern: object) -> str:
        if not isinstance(pattern, str) or len(pattern) > 100 or re.search(r"%[^a-zA-Z%]*\d{2}", pattern):
            raise TemplateError(f"{CLOCK} takes a format of at most 100 characters without field widths")
        return (now if given is None else _parsed(given)).strftime(pattern)

    return format_time


def _parsed(given: object) -> datetime:
    text = given if isinstance(given, str) else ""
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    for pattern in _FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, pattern)
    raise TemplateError(
        f"{DATE} is {given!r:.60}, which is not a date: write it as 2026-03-31 or 31 Mar 2026"
    )
