"""What ledger and tables need of a database: SQLite's `Database` has it, and PostgreSQL's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Value = int | float | str | bytes | None
Row = tuple[Value, ...]


class SqlStore(Protocol):
    """Statements are written in what SQLite and PostgreSQL both understand, with `?` for values. Thread-safe.

    Transactions run one at a time, over all processes. Raises StoreBusy and StoreError.
    """

    @property
    def exists(self) -> bool:
        """Whether there is something to read."""
        ...

    @property
    def shared_clock(self) -> Callable[[], float] | None:
        """Seconds that go on alike for all who share it; None where all are on this machine."""
        ...

    def query(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows of a SELECT."""
        ...

    def execute(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Run one statement in its own transaction (or the enclosing one); returns how many rows changed."""
        ...

    def insert(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Run an INSERT … RETURNING of one row's number in its own transaction (or the enclosing one)."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run one statement for each of `rows`, in one transaction."""
        ...

    def transaction(self) -> AbstractContextManager[object]:
        """Run a block in a transaction, atomically. Blocks may nest; the outermost commits."""
        ...

    def erase_deleted(self) -> None:
        """Remove deleted data also from the files, as far as this can be done."""
        ...

    def erase_copies(self) -> None:
        """Remove what `erase_deleted` leaves, as far as this can be done."""
        ...

    def damage(self) -> list[str]:
        """What is wrong with the database itself."""
        ...

    def triggers(self) -> set[str]:
        """The names of the triggers that are there."""
        ...

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        ...
