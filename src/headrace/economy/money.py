"""Money as integers: nano-dollars, so that sums are exact."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

NANO = 10**9
"""Nano-dollars in a dollar."""
MAX_NANO = 10**18
"""A billion dollars: more is an error of its source, and sums of it fit SQLite's integers."""
MAX_BILL = 10**15
"""A million dollars: no attempt costs more, whatever its usage says."""


def nano_of(usd: object) -> int:
    """Nano-dollars of an amount in dollars, rounded half up. ValueError where it is no number or too large.

    A float means the decimal number that it is written as: 0.1 is a tenth.
    """
    if isinstance(usd, bool) or not isinstance(usd, int | float | str | Decimal):
        raise ValueError(f"{usd!r} is no amount in dollars")
    try:
        amount = Decimal(str(usd))
    except InvalidOperation:
        raise ValueError(f"{usd!r:.60} is no amount in dollars") from None
    if not amount.is_finite() or abs(amount) > MAX_NANO // NANO:
        raise ValueError(f"{usd!r:.60} is no amount in dollars up to {MAX_NANO // NANO:,}")
    return int((amount * NANO).to_integral_value(ROUND_HALF_UP))


def usd_of(nano: int) -> Decimal:
    """The amount in dollars, exact."""
    return Decimal(nano).scaleb(-9)


def shown_usd(nano: int, digits: int = 2) -> str:
    """`$1,234.56`, with as many more digits as a small amount needs to show two figures."""
    usd = usd_of(abs(nano))
    if nano and usd < Decimal(1).scaleb(1 - digits):
        digits = min(9, 1 - usd.adjusted())
    rounded = usd.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{'-' if nano < 0 else ''}${rounded:,.{digits}f}"


def plain_usd(nano: int) -> str:
    """The amount in dollars without rounding and without useless zeros: `0.0000125`."""
    text = f"{usd_of(nano):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
