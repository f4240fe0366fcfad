"""How many replicas there should be: a pure function, for servers and simulations."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

IDLE_SHARE = 0.5
"""One less is enough where its places would be taken to this share."""


class ScalingPolicy(Struct, frozen=True, kw_only=True):
    """From `fewest` to `most` replicas. More while requests wait for a place, or while fewer than `met` of
    the recent ones keep the targets; after a step for the targets the next one waits `settle_s`, until
    requests that came after it are counted. Less after `idle_s` in which one less would have been enough."""

    fewest: int
    most: int
    idle_s: float = 60.0
    settle_s: float = 10.0
    met: float = 0.99


class Observed(Struct, frozen=True, kw_only=True):
    """What is seen at one time: replicas that run and stay, `places` of each, requests in flight, and those
    of them that wait for a replica. `attained` is the share of recent requests within their targets, None
    where there are no targets or too few requests."""

    now_s: float
    replicas: int
    places: int
    in_flight: int
    waiting: int
    attained: float | None = None


class ScalingState(Struct, frozen=True):
    """`wanted` replicas. `needed_s`: when one less was not enough; `settled_s`: since when as many run as are
    wanted, infinite while they do not."""

    wanted: int
    needed_s: float
    settled_s: float = math.inf


def scaled(before: ScalingState, seen: Observed, policy: ScalingPolicy) -> ScalingState:
    """What is wanted now."""
    wanted, now_s = before.wanted, seen.now_s
    settled_s = min(before.settled_s, now_s) if seen.replicas >= wanted else math.inf
    missed = seen.attained is not None and seen.attained < policy.met
    more = max(wanted, _for_queue(seen))
    if missed and now_s - settled_s >= policy.settle_s:
        more = max(more, wanted + 1)
    more = max(min(more, policy.most), policy.fewest)
    if more > wanted:
        return ScalingState(more, now_s)
    if missed or seen.waiting or seen.in_flight > (wanted - 1) * seen.places * IDLE_SHARE:
        return replace(before, needed_s=now_s, settled_s=settled_s)
    if now_s - before.needed_s > policy.idle_s and wanted > policy.fewest:
        return ScalingState(wanted - 1, now_s)
    return replace(before, settled_s=settled_s)


def _for_queue(seen: Observed) -> int:
    """So many that every request in flight has a place."""
    return max(math.ceil(seen.in_flight / max(seen.places, 1)), 1 if seen.waiting else 0)
