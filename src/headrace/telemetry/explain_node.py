"""What EXPLAIN shows of a request, and what it is made of: nodes, stages, and traces of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from headrace.engine.request import PageMove, Timing, Usage
from headrace.engine.step_share import LookupReplay, StepShare, TokenCosts

OTHER, PARALLEL, TURN = "other", "in parallel", "wait for a turn"
"""Nodes that are no part of the work."""


class ExplainNode(Struct, frozen=True):
    """One part of a request. `predicted_s` is left out where nothing was predicted; `measured_s` is 0 where
    nothing was computed. What the `children` of a node take follows each other, and with "other" sums to the
    node's time, unless its detail says "concurrent". `start_s` counts from the request's arrival, `error` is
    the code of what the part ended with, `span_id` what others were told that it is."""

    name: str
    measured_s: float
    predicted_s: float | UnsetType = UNSET
    detail: Mapping[str, Any] | UnsetType = UNSET
    children: tuple[ExplainNode, ...] | UnsetType = UNSET
    start_s: float | UnsetType = UNSET
    error: str | UnsetType = UNSET
    span_id: str | UnsetType = UNSET


class Stage(Struct, frozen=True):
    """What the server did for a request, outside the engine. Seconds since the request's arrival. It holds
    the stages of its call that lie within its time, unless it `is_whole`: then it was a call of its own,
    whose `stages` and `traces` count from `offset_s`. `content` is what went in and came out, which nobody
    sees unless the operator wants it."""

    name: str
    start_s: float
    end_s: float
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stages: Sequence[Stage] = ()
    traces: Sequence[EngineTrace] = ()
    offset_s: float = 0.0
    is_whole: bool = False
    span_id: str = ""
    error: str = ""
    content: tuple[str, str] = ("", "")


class EngineTrace(Struct, frozen=True):
    """What an engine did for one prompt or input, which was submitted `submitted_s` after the arrival of the
    request and whose end was heard of at `ended_s`. A step reads `weight_bytes` of weights in `weight_format`
    from memory (0: they stay in the caches; in int4 `smaller_bytes`, where known), and may have `max_rows`
    sequences. `moves` are those of KV pages between replicas. `replay` is what speculation would have
    brought, where it is off and the request is to be explained."""

    submitted_s: float
    ended_s: float
    usage: Usage
    timing: Timing
    shares: tuple[StepShare, ...]
    costs: TokenCosts = TokenCosts()
    weight_format: str = ""
    weight_bytes: int = 0
    max_rows: int = 0
    replay: LookupReplay | None = None
    smaller_bytes: int = 0
    moves: tuple[PageMove, ...] = ()
