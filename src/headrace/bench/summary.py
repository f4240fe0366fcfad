"""A figure measured several times: its median with the least and the most."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct


class Summary(Struct, frozen=True):
    """In the unit of what was measured."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Summary:
    """Of one or more values."""
    return Summary(statistics.median(values), min(values), max(values))
