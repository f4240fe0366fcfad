"""What `headrace cluster status` shows of a replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from headrace.cluster.replica_link import ReplicaLink
from headrace.cluster.router import Replica


class ReplicaInfo(Struct, frozen=True, kw_only=True):
    """One replica, for `headrace cluster status`."""

    replica: int
    pid: int
    state: str
    role: str
    requests: int
    running: int
    waiting: int
    kv_used: float
    steps: int
    cached_tokens: int
    prompt_tokens: int


def replica_info(
    link: ReplicaLink, known: Replica | None, cached: Mapping[int, Sequence[int]]
) -> ReplicaInfo:
    """`known` is what the router counts of it, `cached` has the tokens from its cache, and of prompts."""
    status = link.status
    from_cache, prompts = cached.get(link.number, (0, 0))
    return ReplicaInfo(
        replica=link.number,
        pid=link.pid,
        state="draining" if known is None or known.draining else "running",
        role=link.role,
        requests=0 if known is None else known.requests,
        running=status.running,
        waiting=status.waiting,
        kv_used=1 - status.available_pages / status.page_count if status.page_count else 0.0,
        steps=status.steps,
        cached_tokens=from_cache,
        prompt_tokens=prompts,
    )
