"""Alternating pairs of measurements, ours and a peer's: how many, which count, and their file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from comparison import Cell, Figure
from msgspec import Struct

from headrace.bench.engine import MAX_REPEATS, SLOW_SHARE, another_is_due
from headrace.bench.summary import Summary, spread
from headrace.executors.machine_limits import Limits

Measure = Callable[[], dict[str, float]]


class Speed(Struct, frozen=True):
    """The machine's speed during a measurement: bytes read and int8 operations per second."""

    read_per_s: float
    int8_per_s: float


class Pair(Struct, frozen=True, kw_only=True):
    """Results by name, and the machine's limits before ours, between both and after the peer's."""

    cell: str
    ours_version: str
    peer_version: str
    ours: dict[str, float]
    peer: dict[str, float]
    limits: tuple[Limits, Limits, Limits]
    measured_at: str


class Result(Struct, frozen=True, kw_only=True):
    """One metric of a cell: each side's median, and the spread of the pairs' ratios."""

    figure: Figure
    ours: float
    peer: float
    ratio: Summary
    pairs: int
    slow_kept: int
    slow: int
    machine: Speed


def measure_pair(
    cell: Cell, versions: tuple[str, str], ours: Measure, peer: Measure, probe: Callable[[], Limits]
) -> Pair:
    """Measure both sides once."""
    before, ours_found, between, peer_found, after = probe(), ours(), probe(), peer(), probe()
    return Pair(
        cell=cell.key,
        ours_version=versions[0],
        peer_version=versions[1],
        ours=ours_found,
        peer=peer_found,
        limits=(before, between, after),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def slow_marks(pairs: Sequence[Pair]) -> list[bool]:
    """Marks pairs measured while the machine was slower than `SLOW_SHARE` of its speed in that cell."""
    if not pairs:
        return []
    machine = machine_speed(pairs)
    return [
        any(
            limits.int8_per_s < SLOW_SHARE * machine.int8_per_s
            or limits.read_bytes_per_s < SLOW_SHARE * machine.read_per_s
            for limits in pair.limits
        )
        for pair in pairs
    ]


def machine_speed(pairs: Sequence[Pair]) -> Speed:
    """Over all probes around the pairs of a cell: the maximum of arithmetic, since the peak is never
    exceeded, but the median of read bandwidth, since a shared machine sometimes reads half as fast
    again for seconds.
    """
    probes = [limits for pair in pairs for limits in pair.limits]
    return Speed(
        read_per_s=statistics.median(limits.read_bytes_per_s for limits in probes),
        int8_per_s=max(limits.int8_per_s for limits in probes),
    )


def missing(pairs: Sequence[Pair], wanted: int, repeats: int = MAX_REPEATS) -> bool:
    """True if another pair must be measured."""
    return another_is_due(slow_marks(pairs), wanted, repeats)


def results(cell: Cell, pairs: Sequence[Pair], wanted: int) -> list[Result]:
    """Results over `wanted` pairs; slow pairs are used only if there are too few others."""
    marks = slow_marks(pairs)
    order = sorted(range(len(pairs)), key=lambda index: marks[index])[:wanted]
    kept = [pairs[index] for index in order]
    return [
        Result(
            figure=figure,
            ours=spread([pair.ours[figure.name] for pair in kept]).median,
            peer=spread([pair.peer[figure.name] for pair in kept]).median,
            ratio=spread([figure.ratio(pair.ours[figure.name], pair.peer[figure.name]) for pair in kept]),
            pairs=len(kept),
            slow_kept=sum(marks[index] for index in order),
            slow=sum(marks),
            machine=machine_speed(pairs),
        )
        for figure in cell.case.figures
    ]


class ResultFile:
    """Pairs as JSON lines, so that a stopped run can resume."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_bytes() if path.exists() else b""
        # A last line without a newline is left from an interrupted write.
        complete = text[: text.rfind(b"\n") + 1]
        if complete != text:
            path.write_bytes(complete)
        self._pairs = [msgspec.json.decode(line, type=Pair) for line in complete.splitlines()]

    def add(self, pair: Pair) -> None:
        """Append a pair."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(pair) + b"\n")
        self._pairs.append(pair)

    def of(self, cell: Cell, versions: tuple[str, str], machine: Limits) -> list[Pair]:
        """Pairs with the same versions, processor and number of threads."""
        return [
            pair
            for pair in self._pairs
            if pair.cell == cell.key
            and (pair.ours_version, pair.peer_version) == versions
            and _machine(pair.limits[0]) == _machine(machine)
        ]


def _machine(limits: Limits) -> tuple[str, str, int]:
    return limits.cpu, limits.isa, limits.threads
