"""Measurements of endpoints over time. Bounded: what is old, and what is too much, is deleted."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from headrace.storage.database import Database

KEPT_S = 15 * 86_400
"""Prompts of 100,000 tokens are judged over 14 days."""
MAX_SAMPLES = 200_000


class ProbeRow(Struct, frozen=True):
    """One measurement: `kind` says what `body`, a JSON object, is about."""

    at_s: float
    endpoint: str
    kind: str
    body: bytes


class Probes:
    """The measurements in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: ProbeRow) -> None:
        """Keep a measurement."""
        self._database.execute(
            "INSERT INTO probe_samples (at_s, endpoint, kind, body) VALUES (?, ?, ?, ?)",
            (row.at_s, row.endpoint, row.kind, row.body),
        )

    def trim(self, now_s: float, most: int = MAX_SAMPLES) -> None:
        """Delete what is older than KEPT_S, and the oldest beyond `most`."""
        self._database.execute(
            "DELETE FROM probe_samples WHERE at_s < ? OR id <= (SELECT max(id) FROM probe_samples) - ?",
            (now_s - KEPT_S, most),
        )

    def since(self, from_s: float) -> list[ProbeRow]:
        """The measurements from a time on, in their order."""
        if not self._database.exists:
            return []
        rows = self._database.query(
            "SELECT at_s, endpoint, kind, body FROM probe_samples WHERE at_s >= ? ORDER BY id", (from_s,)
        )
        return [ProbeRow(*cast("tuple[Any, ...]", row)) for row in rows]
