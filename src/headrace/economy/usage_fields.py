"""The fields of a usage object, of which none may be overlooked."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, cast

MAX_COUNT = 2**53
_NO_COUNTS = frozenset({
    # Whole numbers that are times, or money that is not billed by them.
    *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"),
    *("queue_time", "prompt_time", "completion_time", "total_time"),
    *("cost", "cost_details", "cost_in_usd_ticks"),
})  # fmt: skip


class UnknownUsage(Exception):
    """A usage object that cannot be accounted for; the text names the field."""


class Fields:
    """Reads fields by name and remembers which; `refuse_rest` raises UnknownUsage for counts not read."""

    def __init__(self, usage: dict[str, Any], path: str = "") -> None:
        self._usage, self._path = usage, path
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._usage.get(name) is not None

    def optional(self, name: str) -> int | None:
        """A count, None where there is none."""
        self._read.add(name)
        value = self._usage.get(name)
        return None if value is None else self._checked(name, value)

    def count(self, name: str) -> int:
        """A count, 0 where there is none."""
        return self.optional(name) or 0

    def word(self, name: str) -> str:
        """A text, "" where there is none."""
        value = self._usage.get(name)
        return value if isinstance(value, str) else ""

    def inside(self, name: str) -> Fields:
        """The fields of an object in a field; none where that is missing."""
        self._read.add(name)
        value = self._usage.get(name)
        if value is not None and not isinstance(value, dict):
            raise UnknownUsage(f"{self._path}{name} is no object")
        return Fields(cast("dict[str, Any]", value or {}), f"{self._path}{name}.")

    def entries(self, name: str) -> list[Fields]:
        """The objects of a list in a field."""
        self._read.add(name)
        value: object = self._usage.get(name) or []
        found = cast("list[object]", value) if isinstance(value, list) else [value]
        if not all(isinstance(entry, dict) for entry in found):
            raise UnknownUsage(f"{self._path}{name} is no list of objects")
        return [Fields(cast("dict[str, Any]", entry), f"{self._path}{name}.") for entry in found]

    def ignore(self, *names: str) -> None:
        """Fields that say nothing that is billed; they must be counts all the same."""
        for name in names:
            self.count(name)

    def check_total(self, name: str, expected: int) -> None:
        """Raise UnknownUsage where a total is there and another."""
        total = self.optional(name)
        if total is not None and total != expected:
            raise UnknownUsage(f"{self._path}{name} is {total:,}, the parts are {expected:,}")

    def refuse_rest(self) -> None:
        """Raise UnknownUsage for whole numbers other than 0 in fields that were not read."""
        for name, value in self._usage.items():
            if name not in self._read and name not in _NO_COUNTS and any(_counts(value)):
                raise UnknownUsage(
                    f"the usage has {self._path}{name}, which is not known here: {value!r}"[:300]
                )

    def _checked(self, name: str, value: object) -> int:
        if isinstance(value, Decimal) and value == value.to_integral_value():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
            raise UnknownUsage(f"{self._path}{name} is {value!r}, which is no count"[:200])
        return value


def _counts(value: object) -> Iterator[int]:
    """Whole numbers anywhere in a value. Numbers with a fraction are times and money."""
    if isinstance(value, dict):
        for entry in cast("dict[str, object]", value).values():
            yield from _counts(entry)
    elif isinstance(value, list):
        for entry in cast("list[object]", value):
            yield from _counts(entry)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value
