"""What is shown of a replica, and of all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from headrace.cluster.cost_model import CostModel
from headrace.cluster.replica_link import ReplicaLink
from headrace.cluster.router import CostsFrom, Router
from headrace.engine.client import EngineStatus


class ReplicaInfo(Struct, frozen=True, kw_only=True):
    """One replica, for `headrace cluster status`. Routing predicts with `costs`: "measured" by the replica,
    the mean of the "others" while it has none of its own, or "assumed" while nobody has."""

    replica: int
    node: str
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
    costs_from: CostsFrom | None = None
    costs: CostModel | None = None


def replica_info(link: ReplicaLink, router: Router, cached: Mapping[int, Sequence[int]]) -> ReplicaInfo:
    """`cached` has the tokens from its cache, and of prompts."""
    status, known = link.status, router.replicas.get(link.number)
    costs, costs_from = (None, None) if known is None else router.costs(link.number)
    from_cache, prompts = cached.get(link.number, (0, 0))
    return ReplicaInfo(
        replica=link.number,
        node=link.node,
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
        costs_from=costs_from,
        costs=costs,
    )


def summed_status(links: Sequence[ReplicaLink], before: EngineStatus) -> EngineStatus:
    """Sums over replicas; the latest step, that of `before` where there is no replica, and the longest."""
    each = [link.status for link in links]
    return EngineStatus(
        running=sum(one.running for one in each),
        waiting=sum(one.waiting for one in each),
        free_pages=sum(one.free_pages for one in each),
        available_pages=sum(one.available_pages for one in each),
        page_count=sum(one.page_count for one in each),
        steps=sum(one.steps for one in each),
        last_step_s=max((one.last_step_s for one in each), default=before.last_step_s),
        alive=bool(each),
        longest_step_s=max((link.longest_step_s for link in links), default=0.0),
        preemptions=sum(one.preemptions for one in each),
        masks=sum(one.masks for one in each),
        mask_s=sum(one.mask_s for one in each),
        drafted=sum(one.drafted for one in each),
        accepted=sum(one.accepted for one in each),
    )
