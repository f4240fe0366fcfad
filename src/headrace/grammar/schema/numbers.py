"""Bounds of numbers, also where a schema has none: small models write digits without end."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

from headrace.grammar.schema.keywords import Schema, Unsupported, types_of

LARGEST_INTEGER: Final = 9_200_000_000_000_000_000
"""Integers have at most 19 digits; the compiler's are of 64 bits."""
LARGEST_NUMBER: Final = 1_000_000_000_000_000
"""Numbers that need not be integers have at most 16 digits before the point, and `DECIMALS` behind it."""
DECIMALS: Final = 9
_MAX_FACTOR: Final = 2**32
_BOUNDS: Final = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}


def with_bounds(node: Schema, *, decimals: bool) -> Schema:
    """The node with bounds that float64 holds exactly, and with bounds for numbers that have none.

    `decimals`: bound these, too. No other schema of the document may then have `multipleOf`.
    """
    out = dict(node)
    for keyword, sign in _BOUNDS.items():
        if keyword in out:
            out[keyword] = _exact(out[keyword], sign)
    kinds = types_of(node) & {"integer", "number"} if "type" in node else frozenset[str]()
    if not kinds or "enum" in node or "const" in node:
        return out
    largest = LARGEST_NUMBER if "number" in kinds else LARGEST_INTEGER
    low = max((out[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in out), default=None)
    high = min((out[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in out), default=None)
    if low is None and (high is None or high > -largest):
        out["minimum"] = -largest
    if high is None and (low is None or low < largest):
        out["maximum"] = largest
    if decimals and "number" in kinds:
        out["multipleOf"] = 10**-DECIMALS
    return out


def _exact(value: Any, sign: int) -> Any:
    """A bound as it is or, where float64 or 64 bits do not hold it, the next one inside."""
    if isinstance(value, int) and abs(value) <= 2**53:
        return value
    if abs(value) >= LARGEST_INTEGER:
        return LARGEST_INTEGER if value > 0 else -LARGEST_INTEGER
    near = float(value)
    if (near - value) * sign > 0:
        near = math.nextafter(near, -sign * math.inf)
    return near


def check_factors(factors: list[Any]) -> None:
    """Refuse factors whose least common multiple the compiler cannot hold: it would count on beside it."""
    exact = [Decimal(str(factor)) for factor in factors]
    shift = max((-int(factor.as_tuple().exponent) for factor in exact), default=0)
    common = math.lcm(*(int(factor.scaleb(max(shift, 0))) for factor in exact)) if exact else 1
    if common >= _MAX_FACTOR:
        raise Unsupported("multipleOf", "#", f"has {', '.join(map(str, factors))}: too many digits together")
