"""Entries of the ledger, as they are written and read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import fields

from headrace.economy.rates import BillLine

Kind = Literal["attempt", "lost", "correction", "reconciliation", "machine"]
Status = Literal["measured", "disputed", "reported", "estimated", "unpriced", "not_billed"]
"""What the amount is from: usage and prices, also where the usage cannot be right; the provider's own
statement; a bound or a count of ours. Or there is none: the price is not known, or nothing was billed."""


class Entry(Struct, frozen=True, kw_only=True):
    """One entry without its postings. `nano_usd` is what they debit in sum; `hold` 0 where there was none.

    An `attempt` is one attempt at a target, `lost` one that was reserved and never settled, a `correction`
    names in `corrects` the entry that it adds to, a `reconciliation` is what a provider billed besides, and
    `machine` the time of hardware of one's own. `started_s` and `booked_s` are seconds since 1970.
    """

    kind: Kind
    status: Status
    reason: str = ""
    started_s: float
    booked_s: float
    request_id: str = ""
    attempt: int = 0
    attempt_kind: str = ""
    key_name: str = ""
    route: str = ""
    target: str = ""
    provider: str = ""
    model: str = ""
    processing: str = "standard"
    outcome: str = ""
    billed: str = ""
    elapsed_s: float = 0.0
    first_content_s: float | None = None
    nano_usd: int = 0
    price_source: str = ""
    raw_usage: bytes = b""
    hold: int = 0
    corrects: int | None = None

    @property
    def day(self) -> str:
        """The day that it counts for, in UTC."""
        return day_of(self.started_s)

    @property
    def name(self) -> str:
        """`provider/model`; "local" stands for this machine."""
        return f"{self.provider or LOCAL}/{self.model}"


class Posting(Struct, frozen=True):
    """A line of an entry: what it adds to an account, and for which quantity of which class."""

    account: str
    name: str
    quantity: int
    nano_usd: int


LOCAL = "local"
ENTRY_FIELDS = tuple(field.name for field in fields(Entry))


def day_of(unix_s: float) -> str:
    """`2026-11-24`, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")


def postings_of(entry: Entry, lines: tuple[BillLine, ...]) -> list[Posting]:
    """Debits of the expense by class, and what that makes owed to the provider or to the machine's owner.

    Where the price is not known the quantities stand in accounts that say so.
    """
    kind = "unpriced" if entry.status == "unpriced" else "expense"
    debits = [
        Posting(f"{kind}:{entry.name}:{line.name}", line.name, line.quantity, line.nano_usd) for line in lines
    ]
    total = sum(line.nano_usd for line in lines)
    owed = f"payable:{entry.provider}" if entry.provider else "owner:machine"
    return [*debits, Posting(owed, "", 0, -total)] if total else debits
