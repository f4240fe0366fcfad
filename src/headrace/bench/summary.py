"""Repeated measurements: median, minimum and maximum."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct


class Summary(Struct, frozen=True):
    """In the unit of the measured values."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Summary:
    """Summary of one or more values."""
    return Summary(statistics.median(values), min(values), max(values))
