"""The price of one model at one time, and the bill of an amount of usage by it. Integers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from operator import attrgetter

from msgspec import Struct

from headrace.economy.money import MAX_BILL, MAX_NANO, NANO, shown_usd
from headrace.economy.quantities import CLASSES, REQUEST, REQUEST_UNIT, Quantities

MILLION = 10**6
_ALWAYS = frozenset({"input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning"})
_GROUPS = tuple(
    tuple(name for name, kind in CLASSES.items() if kind.direction == direction)
    for direction in ("input", "output", "other")
)
_COUNTS = tuple(attrgetter(*names) for names in _GROUPS)
_AUDIO = ("input_audio", "cache_read_audio", "output_audio")


class Unpriced(Exception):
    """What something costs is not known; the text says what is missing."""


class UnitPrice(Struct, frozen=True):
    """Nano-dollars per million. `tiers` (start, rate), ascending: the last whose start the input exceeds
    holds for all tokens, not only for those beyond it."""

    base: int
    tiers: tuple[tuple[int, int], ...] = ()

    def at(self, input_side: int) -> int:
        """Nano-dollars per million where the request's input has so many tokens."""
        return next((rate for start, rate in reversed(self.tiers) if input_side > start), self.base)

    def most(self, input_side: int) -> int:
        """The dearest that it is for inputs of at most so many tokens."""
        return max(self.base, *(rate for start, rate in self.tiers if input_side > start), 0)


class BillLine(Struct, frozen=True):
    """One line of a bill: a class, how much of it, and what that costs."""

    name: str
    quantity: int
    nano_usd: int


class Rates(Struct, frozen=True):
    """Rates by class. `source` says where they are from, with its version. `audio_as_text`: a model without a
    price for audio has one price for all that it reads or makes."""

    by_class: Mapping[str, UnitPrice]
    source: str
    audio_as_text: bool = False

    def of(self, name: str) -> UnitPrice:
        """The rate of a class: its own, or that of the class that it is part of. Raises Unpriced."""
        found = self.by_class.get(name)
        if found is not None:
            return found
        rate = self.by_class.get(self._stand_in(name))
        if rate is None:
            raise Unpriced(f"{self.source} has no price for {name}")
        return rate

    def _stand_in(self, name: str) -> str:
        """The class whose price holds for one without its own; "" where that would be a wrong one."""
        if name == "cache_write_1h" and "cache_write" in self.by_class:
            return ""  # an hour is dearer than the five minutes of cache_write
        if name in _AUDIO and not self.audio_as_text:
            return ""
        if name == "cache_read_audio" and "cache_read" in self.by_class:
            return "" if "input_audio" in self.by_class else "cache_read"
        return CLASSES[name].parent or ""

    def bill(self, quantities: Quantities) -> tuple[BillLine, ...]:
        """A line for each class with any quantity, each rounded half up. Raises Unpriced, also where no usage
        can be so large."""
        input_side = quantities.input_side
        lines = [
            BillLine(name, count, _rounded(count * self.of(name).at(input_side)))
            for name, count in quantities.items()
        ]
        if fee := self.by_class.get(REQUEST):
            lines.append(BillLine(REQUEST, 1, _rounded(fee.at(input_side))))
        if sum(line.nano_usd for line in lines) > MAX_BILL:
            raise Unpriced(f"the usage would cost more than {shown_usd(MAX_BILL, 0)}, so it cannot be right")
        return tuple(lines)

    def most(self, quantities: Quantities) -> int:
        """What usage of at most these quantities can cost, however a provider divides it into classes.

        Input may turn out to be read from or written to a cache, and output to be reasoning; audio, images
        and searches are billed as such only where they are expected. Raises Unpriced.
        """
        input_side, total, lines = quantities.input_side, 0, 0
        for names, counts in zip(_GROUPS, _COUNTS, strict=True):
            if count := sum(counts(quantities)):
                possible = [name for name in names if name in _ALWAYS or getattr(quantities, name)]
                total += count * max(rate.most(input_side) for rate in self._rates_of(possible, quantities))
                lines += len(possible)
        fee = self.by_class.get(REQUEST)
        total += fee.most(input_side) if fee else 0
        most = -(-total // MILLION) + (lines + 1) // 2  # each line and the fee may be rounded up by a half
        if most > MAX_NANO:
            raise Unpriced(f"it may cost more than {shown_usd(MAX_NANO, 0)}")
        return most

    def _rates_of(self, names: Sequence[str], quantities: Quantities) -> list[UnitPrice]:
        """Of classes that may be billed. One without a price, of which none is expected, has that of
        another."""
        priced = [name for name in names if name in self.by_class or getattr(quantities, name)]
        return [self.of(name) for name in priced or names[:1]]


def _rounded(millionths: int) -> int:
    """Of millionths of nano-dollars, half up."""
    return (millionths + MILLION // 2) // MILLION


def rate_of(usd: Decimal, unit: int) -> int:
    """Nano-dollars per million of a price in dollars per `unit`. ValueError where that is no whole number, or
    the price more than a million dollars."""
    if not usd.is_finite() or not 0 <= usd <= MILLION:
        raise ValueError(f"{usd} dollars per {unit:,} is no price from 0 to a million dollars")
    exact = usd * NANO * MILLION / unit
    if exact != exact.to_integral_value():
        raise ValueError(f"{usd} dollars per {unit:,} is no price in steps of 1e-9 dollars per million")
    return int(exact)


def unit_of(name: str) -> int:
    """How many of a class its price in dollars is for: a million tokens, a thousand searches or requests."""
    return REQUEST_UNIT if name == REQUEST else CLASSES[name].unit
