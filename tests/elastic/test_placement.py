"""What is missing is said node by node."""

from __future__ import annotations

from headrace.elastic.placement import MAX_NAMED, Node, lacking


def test_a_node_with_room_is_enough() -> None:
    assert lacking([Node("a", 4, 0), Node("b", 4, 2)], 2) is None


def test_each_node_is_named_with_what_it_lacks() -> None:
    said = lacking([Node("b", 16, 3), Node("a", 4, 4), Node("c", 16, 16, alive=False)], 8)
    assert said == (
        "a replica takes 8 cores: a has 4 cores in all, 4 cores too few; "
        "b has 3 of 16 cores free, 5 too few; c is down"
    )
    assert lacking([], 1) == "a replica takes 1 core: the cluster has no node"
    many = lacking([Node(f"n{number:03}", 1, 0) for number in range(40)], 1) or ""
    assert many.endswith("and 24 more") and many.count(";") == MAX_NAMED
