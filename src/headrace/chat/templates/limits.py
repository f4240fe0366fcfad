"""Checks before evaluation, for operators and string methods with results much larger than inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from headrace.chat.templates.render_budget import INTEGER_LIMIT_BITS, Budget
from headrace.errors import TemplateError

REPEAT_LIMIT = 10_000  # widths, precisions, group sizes
_REVERSE_SEARCH_LIMIT = 100_000_000  # worst case of searching from the right: product of the lengths


def check_repeat(*numbers: object) -> None:
    """Reject a width or count over REPEAT_LIMIT."""
    for number in numbers:
        if isinstance(number, (int, float)) and abs(number) > REPEAT_LIMIT:
            raise TemplateError(
                f"the chat template repeats something {number:.4g} times, the limit is {REPEAT_LIMIT:,}"
            )


def check_binop(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Reject an arithmetic operation if its result would be too large."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > INTEGER_LIMIT_BITS and operator in ("**", "*"):
            raise TemplateError(f"the chat template made an integer of more than {INTEGER_LIMIT_BITS} bits")
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, (str, list, tuple)):
                size = len(value) if isinstance(value, str) else budget.weigh(cast(object, value))
                budget.check(size * max(times, 0))
    elif operator == "%" and isinstance(left, str):
        check_percent(budget, left, right)
    elif operator == "+":
        budget.check(budget.weigh((left, right)))


def check_percent(budget: Budget, pattern: str, values: object) -> None:
    """printf-style formatting: reject long widths, and more fields than the values' size permits."""
    if re.search(r"%[^a-zA-Z%]*(\d{4}|\*)", pattern):
        raise TemplateError("the chat template formats with a width over 999 or a width from a value")
    budget.check(len(pattern) + pattern.count("%") * (1000 + budget.weigh(values)))


def check_replace(budget: Budget, text: str, old: str, new: str) -> None:
    """Reject a replacement if its result would be too large."""
    budget.check(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def check_str_method(
    budget: Budget, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Reject a method call with a result much larger than its arguments, or that would take too long."""
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        check_repeat(*args, *kwargs.values())
        budget.check(len(text) + (text.count("\t") if name == "expandtabs" else 1) * REPEAT_LIMIT)
    elif name == "replace" and len(args) >= 2:
        check_replace(budget, text, str(args[0]), str(args[1]))
    elif name == "join" and args:
        if not isinstance(args[0], (str, list, tuple, dict)):
            raise TemplateError("join takes a list or a string")
        parts = cast(Any, args[0])
        budget.check(budget.weigh(parts) + len(parts) * len(text))
    elif name == "format":
        if re.search(r":[^}]*(\d{4}|\{)", text):
            raise TemplateError("the chat template formats with a width over 999 or a width from a value")
        budget.check(len(text) + text.count("{") * (1000 + budget.weigh((args, kwargs))))
    elif name in ("rfind", "rindex", "rpartition", "rsplit"):
        sought = str(args[0] if args else kwargs.get("sep", ""))
        if len(text) * len(sought) > _REVERSE_SEARCH_LIMIT:
            raise TemplateError(
                f"the chat template searches {len(text):,} characters from the right: too slow"
            )
