"""Whether nodes have room for replicas, and what is missing on each."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.errors import HeadraceError

MAX_NAMED = 16


class NoRoom(HeadraceError):
    """No node has room for a replica."""

    status = 503
    remedy = "Add a node, ask for fewer replicas, or give each fewer cores (--threads)."


class Node(Struct, frozen=True):
    """A machine that runs replicas; `free_cpus` of its `cpus` are not taken by others."""

    name: str
    cpus: float
    free_cpus: float
    alive: bool = True


def lacking(nodes: Sequence[Node], cpus: int) -> str | None:
    """Why none of the nodes takes a replica with so many cores, node by node; None where one does."""
    if any(node.alive and node.free_cpus >= cpus for node in nodes):
        return None
    said = [_lack(node, cpus) for node in sorted(nodes, key=lambda node: node.name)[:MAX_NAMED]]
    if len(nodes) > MAX_NAMED:
        said.append(f"and {len(nodes) - MAX_NAMED} more")
    return f"a replica takes {_cores(cpus)}: " + ("; ".join(said) or "the cluster has no node")


def _lack(node: Node, cpus: int) -> str:
    if not node.alive:
        return f"{node.name} is down"
    if node.cpus < cpus:
        return f"{node.name} has {_cores(node.cpus)} in all, {_cores(cpus - node.cpus)} too few"
    return (
        f"{node.name} has {node.free_cpus:g} of {_cores(node.cpus)} free, {cpus - node.free_cpus:g} too few"
    )


def _cores(count: float) -> str:
    return f"{count:g} core{'' if count == 1 else 's'}"
