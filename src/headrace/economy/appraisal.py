"""What an attempt cost, by what is known of it: the provider's statement, its usage, counts of ours, the
hold."""

from __future__ import annotations

from msgspec import Struct

from headrace.economy.entries import Status
from headrace.economy.prices import PriceBook
from headrace.economy.quantities import Quantities, quantities_of
from headrace.economy.rates import BillLine
from headrace.economy.usage import ReadUsage, UnknownUsage, read_usage
from headrace.inference.attempts import TokenCounts

REPORTED, ESTIMATE = "reported", "estimate"
STATES_ITS_COST = frozenset({"openrouter"})


class Appraised(Struct, frozen=True):
    """The lines of an entry, what they are from, and why they are no measured ones."""

    lines: tuple[BillLine, ...]
    status: Status
    source: str = ""
    reason: str = ""

    @property
    def nano_usd(self) -> int | None:
        """The cost, None where it is not known."""
        return None if self.status == "unpriced" else sum(line.nano_usd for line in self.lines)


class Evidence(Struct, frozen=True, kw_only=True):
    """What is known of an attempt. `most` is what was set aside for it, None where that is not known;
    `plausible` as in `Attempt`."""

    provider: str
    model: str
    unix_s: float
    billed: str
    processing: str = "standard"
    raw_usage: bytes = b""
    tokens: TokenCounts | None = None
    reported_nano_usd: int | None = None
    most: int | None = None
    plausible: TokenCounts | None = None


def appraise(prices: PriceBook, found: Evidence) -> Appraised:
    """The cost of an attempt that a provider may have billed.

    What the provider states itself goes first, then its usage, then counts of ours. An amount that is not
    known is the worst case that was set aside, so that a budget stays kept; without one the attempt is
    unpriced.
    """
    if found.billed == "no":
        return Appraised((), "not_billed")
    if not found.provider:  # a model of this machine, whose time is booked apart
        counts = Quantities() if found.tokens is None else quantities_of(found.tokens)
        return Appraised(_unpriced_lines(counts), "not_billed")
    try:
        usage = read_usage(found.raw_usage)
    except UnknownUsage as error:
        return _without_usage(prices, found, str(error))
    if found.tokens is None and found.reported_nano_usd is None and usage.quantities == Quantities():
        return _without_usage(prices, found, "the usage has no tokens")
    stated = found.reported_nano_usd
    if stated is None and found.provider in STATES_ITS_COST:
        stated = usage.reported_nano_usd
    if stated is not None:
        return _as_stated(stated, usage.quantities)
    bill = prices.bill(
        found.provider,
        found.model,
        usage.quantities,
        processing=_processing(found, usage),
        unix_s=found.unix_s,
    )
    if bill.missing:
        return _unknown(found, bill.missing, usage.quantities)
    doubt = _doubt(usage.quantities, found.plausible)
    return Appraised(bill.lines, "disputed" if doubt else "measured", bill.source, doubt)


def _doubt(reported: Quantities, most: TokenCounts | None) -> str:
    """Why a usage cannot be right; "" where it can."""
    if most is None:
        return ""
    counts = reported.tokens
    output = counts.output + counts.reasoning + counts.output_audio
    for side, said, bound in (("input", reported.input_side, most.input), ("output", output, most.output)):
        if said > bound:
            return f"the usage has {said:,} tokens of {side}, by what was sent and received at most {bound:,}"
    return ""


def _processing(found: Evidence, usage: ReadUsage) -> str:
    """What the provider did, where its usage says so; a word for "as usual" says less than what was asked
    for."""
    return found.processing if usage.processing in ("", "standard", "default") else usage.processing


def _without_usage(prices: PriceBook, found: Evidence, reason: str) -> Appraised:
    counts = Quantities() if found.tokens is None else quantities_of(found.tokens)
    if found.reported_nano_usd is not None:
        return _as_stated(found.reported_nano_usd, counts)
    if found.tokens is None or found.raw_usage:  # what cannot be read may have more than was counted
        return _unknown(found, reason, counts)
    bill = prices.bill(found.provider, found.model, counts, processing=found.processing, unix_s=found.unix_s)
    if bill.missing:
        return _unknown(found, f"{reason}; {bill.missing}", counts)
    return Appraised(bill.lines, "estimated", bill.source, f"{reason}: tokens were counted here")


def _as_stated(nano_usd: int, counts: Quantities) -> Appraised:
    lines = (BillLine(REPORTED, 1, nano_usd), *_unpriced_lines(counts))
    return Appraised(lines, "reported", "stated by the provider")


def _unknown(found: Evidence, reason: str, counts: Quantities) -> Appraised:
    if found.most is None:
        return Appraised(_unpriced_lines(counts), "unpriced", "", reason)
    lines = (BillLine(ESTIMATE, 1, found.most), *_unpriced_lines(counts))
    return Appraised(lines, "estimated", "the worst case", reason)


def _unpriced_lines(counts: Quantities) -> tuple[BillLine, ...]:
    return tuple(BillLine(name, count, 0) for name, count in counts.items())
