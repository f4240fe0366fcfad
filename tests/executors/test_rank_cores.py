"""Cores of ranks, on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.executors.rank_cores import rank_cores, staying_on, usable_cores


def machine(folder: Path, nodes: list[str], siblings: dict[int, str] | None = None) -> Path:
    for number, cores in enumerate(nodes):
        path = folder / "node" / f"node{number}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(f"{cores}\n")
    for core, threads in (siblings or {}).items():
        path = folder / "cpu" / f"cpu{core}" / "topology"
        path.mkdir(parents=True)
        (path / "thread_siblings_list").write_text(f"{threads}\n")
    return folder


def test_each_node_has_its_ranks(tmp_path: Path) -> None:
    two = machine(tmp_path, ["0-3,8-11", "4-7,12-15"])
    assert rank_cores(range(16), 2, two) == ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    assert rank_cores(range(16), 4, two) == ((0, 1, 2, 3), (8, 9, 10, 11), (4, 5, 6, 7), (12, 13, 14, 15))
    assert rank_cores(range(8), 2, two) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert rank_cores([0, 1, 2, 4], 2, two) == ((0, 1, 2), (4,))  # a node stays whole
    assert rank_cores([4, 5, 6, 7], 2, two) == ((4, 5), (6, 7))  # of the node that it may use
    assert rank_cores(range(16), 3, two)[1] == (9, 10, 11, 4, 5)  # no number of nodes: neighbors


def test_each_rank_has_its_nodes(tmp_path: Path) -> None:
    four = machine(tmp_path, ["0-1", "2-3", "4-5", "6-7"])
    assert rank_cores(range(8), 2, four) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    one = machine(tmp_path, ["0-3"], {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert rank_cores(range(4), 2, one) == ((0, 2), (1, 3))


def test_without_nodes_or_enough_cores(tmp_path: Path) -> None:
    assert rank_cores([3, 1, 7, 5], 2, tmp_path) == ((1, 3), (5, 7))
    assert rank_cores([0], 2, tmp_path) == ()
    broken = machine(tmp_path, ["0-x", ""])
    assert rank_cores([0, 1], 2, broken) == ((0,), (1,))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system places threads itself")
def test_a_thread_stays_where_it_is_put_only_meanwhile() -> None:
    before = usable_cores()
    with staying_on(before[:1]):
        assert usable_cores() == before[:1]
    with staying_on(()):
        assert usable_cores() == before
    assert usable_cores() == before
