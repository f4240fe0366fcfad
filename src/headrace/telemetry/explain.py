"""EXPLAIN of a request: a tree of what was done, each node with the seconds it took and those predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from headrace.engine.request import Timing, Usage
from headrace.engine.step_share import StepShare
from headrace.telemetry.advice import advice

MIN_SHOWN_S = 5e-5
"""Waiting that is shorter has no node of its own."""


class ExplainNode(Struct, frozen=True):
    """One part of a request. `predicted_s` is left out where nothing was predicted; `measured_s` is 0 where
    nothing was computed. What the `children` of a node take follows each other, and with "other" sums to the
    node's time, unless its detail says "concurrent"."""

    name: str
    measured_s: float
    predicted_s: float | UnsetType = UNSET
    detail: Mapping[str, Any] | UnsetType = UNSET
    children: tuple[ExplainNode, ...] | UnsetType = UNSET


class Stage(Struct, frozen=True):
    """What the server did for a request, outside the engine. Seconds since the request's arrival; stages may
    be nested."""

    name: str
    start_s: float
    end_s: float
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])


class EngineTrace(Struct, frozen=True):
    """What an engine did for one prompt or input, which was submitted `submitted_s` after the arrival of the
    request and whose end was heard of at `ended_s`."""

    submitted_s: float
    ended_s: float
    usage: Usage
    timing: Timing
    shares: tuple[StepShare, ...]


def explain(stages: Sequence[Stage], traces: Sequence[EngineTrace], total_s: float) -> ExplainNode:
    """The tree of a request whose reply ended `total_s` after its arrival. Its detail "advice" has what would
    help most (see `Advice`), of several prompts the one that took longest."""
    spans = [_Span(one.name, one.start_s, one.end_s, one.detail) for one in stages]
    detail: dict[str, Any] = {}
    if traces:
        start_s = min(one.submitted_s for one in traces)
        spans.append(_Span("engine", start_s, max(one.ended_s for one in traces), {}, _engine(traces)))
        longest = max(traces, key=lambda one: one.timing.total_s)
        if found := advice(longest.usage, longest.shares):
            detail["advice"] = found
    return _tree("request", 0.0, total_s, detail, spans)


def predict(
    stages: Sequence[Stage], traces: Sequence[EngineTrace], total_s: float, detail: Mapping[str, Any]
) -> ExplainNode:
    """The tree of a request of which only the `stages` before the engine were done, in `total_s`: `traces`
    have what was predicted."""
    spans = [_Span(one.name, one.start_s, one.end_s, one.detail) for one in stages]
    done = _tree("request", 0.0, max([total_s, *(one.end_s for one in stages)]), {}, spans)
    parts = tuple(one for one in (done.children or ()) if one.name != "other")
    children = _engine(traces, is_predicted=True)
    seconds = sum(one.predicted_s or 0.0 for one in children)
    engine = ExplainNode("engine", 0.0, seconds or UNSET, detail or UNSET, children or UNSET)
    whole = sum(one.measured_s for one in parts) + seconds
    return ExplainNode("request", 0.0, whole if seconds else UNSET, {"computed": False}, (*parts, engine))


class _Span(Struct, frozen=True):
    name: str
    start_s: float
    end_s: float
    detail: Mapping[str, Any]
    children: tuple[ExplainNode, ...] = ()

    def holds(self, other: _Span) -> bool:
        return self is not other and self.start_s <= other.start_s and other.end_s <= self.end_s


def _tree(
    name: str, start_s: float, end_s: float, detail: Mapping[str, Any], spans: Sequence[_Span]
) -> ExplainNode:
    """A node from spans within it: those that no other holds are its children."""
    children: list[ExplainNode] = []
    left, at_s = sorted(spans, key=lambda one: (one.start_s, -one.end_s)), start_s
    while left:
        first = left.pop(0)
        inner = [one for one in left if first.holds(one)]
        left = [one for one in left if one not in inner]
        if left:  # it was noted a little late, when another part had begun
            first = replace(first, end_s=min(first.end_s, left[0].start_s))
        _gap(children, first.start_s - at_s)
        if first.children:
            children.append(_node(first.name, first.end_s - first.start_s, first.detail, first.children))
        else:
            children.append(_tree(first.name, first.start_s, first.end_s, first.detail, inner))
        at_s = max(at_s, first.end_s)
    if children:
        _gap(children, end_s - at_s)
    return _node(name, end_s - start_s, detail, children)


def _node(
    name: str, seconds: float, detail: Mapping[str, Any], children: Sequence[ExplainNode]
) -> ExplainNode:
    return ExplainNode(name, seconds, UNSET, detail or UNSET, tuple(children) or UNSET)


def _gap(children: list[ExplainNode], seconds: float) -> None:
    if seconds >= MIN_SHOWN_S:
        children.append(ExplainNode("other", seconds))


def _engine(traces: Sequence[EngineTrace], *, is_predicted: bool = False) -> tuple[ExplainNode, ...]:
    parts = _predicted_parts if is_predicted else _of_prompt
    if len(traces) == 1:
        return tuple(parts(traces[0]))
    return tuple(
        ExplainNode(
            f"prompt {index}",
            0.0 if is_predicted else one.timing.total_s,
            one.timing.total_s or UNSET if is_predicted else UNSET,
            detail={"concurrent": True, "start_s": one.submitted_s},
            children=tuple(parts(one)),
        )
        for index, one in enumerate(traces)
    )


def _predicted_parts(trace: EngineTrace) -> list[ExplainNode]:
    found, chunk = [ExplainNode("queue", 0.0, trace.timing.queue_s)], 0
    for share in trace.shares:
        chunk += share.kind != "decode"
        found.append(replace(_of_share(share, trace.usage, chunk), measured_s=0.0))
    return found


def _of_prompt(trace: EngineTrace) -> list[ExplainNode]:
    """Queue, steps, the waiting between them, and what lies between the engine and the reply."""
    timing, usage = trace.timing, trace.usage
    found = [ExplainNode("queue", timing.queue_s)]
    at_s, chunk = timing.queue_s, 0
    for share in trace.shares:
        waited_s = share.start_s - at_s
        if waited_s >= MIN_SHOWN_S:
            found.append(ExplainNode("wait for a turn", waited_s))
        chunk += share.kind != "decode"
        found.append(_of_share(share, usage, chunk))
        at_s = max(at_s, share.end_s)
    _gap(found, timing.total_s - at_s)
    _gap(found, trace.ended_s - trace.submitted_s - timing.total_s)
    return found


def _of_share(share: StepShare, usage: Usage, chunk: int) -> ExplainNode:
    detail: dict[str, Any] = {"tokens": share.tokens, "batch": round(share.rows / share.steps, 2)}
    wall_s = share.end_s - share.start_s
    if share.kind == "decode":
        detail = {"steps": share.steps, "batch": detail["batch"]}
        if share.seconds:
            detail["executor_s"] = share.run_s
        if share.drafted:
            detail |= {"drafted": share.drafted, "accepted": share.accepted, "propose_s": share.propose_s}
        if share.seconds and wall_s - share.seconds >= MIN_SHOWN_S:
            detail["waited_s"] = wall_s - share.seconds
    elif share.kind == "prefill" and chunk == 1:
        detail["cached_tokens"] = usage.cached_tokens
        if usage.cache_miss_reason:
            detail["cache_miss"] = usage.cache_miss_reason
    name = f"prefill {chunk}" if share.kind == "prefill" else share.kind
    return ExplainNode(name, wall_s, share.predicted_s or UNSET, detail)
