"""What an attempt can cost, by how much of output it is allowed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from headrace.economy.quantities import Quantities
from headrace.economy.rates import Rates


class WorstCase(Struct, frozen=True):
    """`nano_usd` is the worst case with `output` tokens; None: no price is known, and `missing` says why.

    `cost` is the worst case with fewer; None where the output may not be bounded. `least` is the least output
    with which the attempt makes sense.
    """

    nano_usd: int | None
    output: int = 0
    least: int = 0
    cost: Callable[[int], int] | None = None
    missing: str = ""

    @classmethod
    def of(cls, rates: Rates, most: Quantities, least: int) -> Self:
        """That of usage of at most these quantities. Raises Unpriced."""
        if not least:
            return cls(rates.most(most))
        return cls(
            rates.most(most), most.output, least, lambda output: rates.most(replace(most, output=output))
        )

    def within(self, nano_usd: int) -> tuple[int, int | None] | None:
        """What to set aside where there is so much, and the output that is granted. None: too little."""
        most = self.nano_usd or 0
        if self.cost is None:
            return (most, None) if most <= nano_usd else None
        if most <= nano_usd:
            return most, self.output
        affordable = bisect_right(range(self.least, self.output + 1), nano_usd, key=self.cost)
        if not affordable:
            return None
        output = self.least + affordable - 1
        return self.cost(output), output
