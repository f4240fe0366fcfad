"""Which cores each rank of a model computes on: neighbors of one NUMA node, where a machine has several."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


def rank_cores(usable: Sequence[int], ranks: int, system: Path = _SYSTEM) -> tuple[tuple[int, ...], ...]:
    """The cores of each rank; none where there are fewer than ranks, which then run where the system likes.

    Nodes stay whole as far as their number allows: with a multiple of them each node has as many ranks, with
    a divisor each rank has as many nodes. Threads of one core stay together.
    """
    if len(usable) < ranks:
        return ()
    nodes = [_near(node, system) for node in _nodes(usable, system)]
    if ranks % len(nodes) == 0 and min(map(len, nodes)) >= ranks // len(nodes):
        return tuple(part for node in nodes for part in _parts(node, ranks // len(nodes)))
    if len(nodes) % ranks == 0:
        each = len(nodes) // ranks
        groups = [nodes[at : at + each] for at in range(0, len(nodes), each)]
        return tuple(tuple(core for node in group for core in node) for group in groups)
    return _parts([core for node in nodes for core in node], ranks)


def usable_cores() -> tuple[int, ...]:
    """The cores that this thread may run on; none where the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def stay_on(cores: Sequence[int]) -> None:
    """This thread, and those that it starts, run on these cores; anywhere where there are none."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@contextmanager
def staying_on(cores: Sequence[int]) -> Generator[None]:
    """The same for threads that are started within."""
    before = usable_cores()
    stay_on(cores)
    try:
        yield
    finally:
        stay_on(before)


def _parts(cores: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return tuple(tuple(cores[a:b]) for a, b in pairwise(bounds))


def _nodes(usable: Sequence[int], system: Path) -> list[list[int]]:
    """The usable cores of each node that has any."""
    left = set(usable)
    nodes: list[list[int]] = []
    folders = [path for path in (system / "node").glob("node*") if path.name[4:].isdigit()]
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        cores = sorted(left & set(_listed(folder / "cpulist")))
        left -= set(cores)
        if cores:
            nodes.append(cores)
    return [*nodes, sorted(left)] if left else nodes


def _near(cores: Sequence[int], system: Path) -> list[int]:
    """The threads of a core next to each other."""

    def first(core: int) -> int:
        siblings = _listed(system / "cpu" / f"cpu{core}" / "topology" / "thread_siblings_list")
        return min(siblings, default=core)

    return sorted(cores, key=lambda core: (first(core), core))


def _listed(path: Path) -> list[int]:
    """The numbers of a list such as 0-3,8; none where the file is none."""
    numbers: list[int] = []
    try:
        for part in path.read_text().strip().split(","):
            low, _, high = part.partition("-")
            numbers += range(int(low), int(high or low) + 1)
    except (OSError, ValueError):
        return []
    return numbers
