"""EXPLAIN of a request: a tree of what was done, each node with the seconds it took and those predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from headrace.telemetry.advice import advice
from headrace.telemetry.engine_nodes import add_gap, engine_nodes
from headrace.telemetry.explain_node import OTHER, PARALLEL, EngineTrace, ExplainNode, Stage

LATE_S = 0.005
"""Parts that overlap by less follow each other, and one was noted late; others lie beside one another."""


def explain(
    stages: Sequence[Stage],
    traces: Sequence[EngineTrace],
    total_s: float,
    *,
    content: bool = False,
    advises: bool = True,
) -> ExplainNode:
    """The tree of a request whose reply ended `total_s` after its arrival. Its detail "advice" has what would
    help most (see `Advice`), of several prompts the one that took longest, unless nobody reads it. With
    `content` details have what went in and came out."""
    detail: dict[str, Any] = {}
    if traces and advises:
        longest = max(traces, key=lambda one: one.timing.total_s)
        if found := advice(longest):
            detail["advice"] = found
    root = _Span("request", 0.0, total_s, detail, _spans(stages, traces, 0.0, content))
    return replace(_tree(root, root.inner), start_s=UNSET)


def predict(
    stages: Sequence[Stage], traces: Sequence[EngineTrace], total_s: float, detail: Mapping[str, Any]
) -> ExplainNode:
    """The tree of a request of which only the `stages` before the engine were done, in `total_s`: `traces`
    have what was predicted."""
    spans = _spans(stages, (), 0.0, content=False)
    done = _tree(_Span("request", 0.0, max([total_s, *(one.end_s for one in stages)]), {}, spans), spans)
    parts = tuple(one for one in (done.children or ()) if one.name != OTHER)
    children = engine_nodes(traces, 0.0, is_predicted=True)
    seconds = sum(one.predicted_s or 0.0 for one in children)
    engine = ExplainNode("engine", 0.0, seconds or UNSET, detail or UNSET, children or UNSET)
    whole = sum(one.measured_s for one in parts) + seconds
    return ExplainNode("request", 0.0, whole if seconds else UNSET, {"computed": False}, (*parts, engine))


class _Span(Struct, frozen=True):
    """Times count from the request's arrival. Spans around it lie in none that `is_whole`, which has all of
    its own in `inner`, or has `children` that are made."""

    name: str
    start_s: float
    end_s: float
    detail: Mapping[str, Any]
    inner: Sequence[_Span] = ()
    children: tuple[ExplainNode, ...] = ()
    is_whole: bool = False
    span_id: str = ""
    error: str = ""

    def holds(self, other: _Span) -> bool:
        return not self.is_whole and self.start_s <= other.start_s and other.end_s <= self.end_s


def _spans(
    stages: Sequence[Stage], traces: Sequence[EngineTrace], offset_s: float, content: bool
) -> list[_Span]:
    """The spans of one call, whose times count from `offset_s`."""
    found = [_of_stage(one, offset_s, content) for one in stages]
    for group in _together(traces):
        start_s, end_s = offset_s + group[0].submitted_s, offset_s + max(one.ended_s for one in group)
        detail: dict[str, Any] = {
            "prompt_tokens": sum(one.usage.prompt_tokens for one in group),
            "output_tokens": sum(one.usage.completion_tokens for one in group),
        }
        children = engine_nodes(group, offset_s)
        found.append(_Span("engine", start_s, end_s, detail, children=children, is_whole=True))
    return found


def _of_stage(stage: Stage, offset_s: float, content: bool) -> _Span:
    detail = dict(stage.detail)
    if content:
        detail |= {key: text for key, text in zip(("input", "output"), stage.content, strict=True) if text}
    inner = _spans(stage.stages, stage.traces, offset_s + stage.offset_s, content)
    return _Span(
        *(stage.name, offset_s + stage.start_s, offset_s + stage.end_s, detail, inner),
        is_whole=stage.is_whole,
        span_id=stage.span_id,
        error=stage.error,
    )


def _together(traces: Sequence[EngineTrace]) -> list[list[EngineTrace]]:
    """Traces that were in the engine at the same time."""
    groups: list[list[EngineTrace]] = []
    end_s = 0.0
    for one in sorted(traces, key=lambda one: one.submitted_s):
        if groups and one.submitted_s < end_s:
            groups[-1].append(one)
        else:
            groups.append([one])
        end_s = max(end_s, one.ended_s)
    return groups


def _tree(span: _Span, spans: Sequence[_Span]) -> ExplainNode:
    """A node with `spans` within it: those that no other holds are its children."""
    if span.children:
        return _node(span, span.children)
    children: list[ExplainNode] = []
    at_s = span.start_s
    for group in _in_a_row(_outer(spans)):
        first_s, last_s = group[0][0].start_s, max(one.end_s for one, _ in group)
        add_gap(children, first_s - at_s, at_s)
        nodes = [_tree(one, held) for one, held in group]
        if len(nodes) > 1:
            beside = tuple(replace(one, detail=_concurrent(one)) for one in nodes)
            nodes = [ExplainNode(PARALLEL, last_s - first_s, children=beside, start_s=first_s)]
        children += nodes
        at_s = max(at_s, last_s)
    if children:
        add_gap(children, span.end_s - at_s, at_s)
    return _node(span, children)


def _outer(spans: Sequence[_Span]) -> list[tuple[_Span, list[_Span]]]:
    """Those that no other holds, by their start, each with all that it holds."""
    found: list[tuple[_Span, list[_Span]]] = []
    left = sorted(spans, key=lambda one: (one.start_s, -one.end_s))
    while left:
        first = left.pop(0)
        held = [one for one in left if first.holds(one)]
        if held:
            left = [one for one in left if not first.holds(one)]
        found.append((first, [*held, *first.inner]))
    return found


def _in_a_row(spans: Sequence[tuple[_Span, list[_Span]]]) -> list[list[tuple[_Span, list[_Span]]]]:
    """Groups that follow each other, in which spans lie beside one another."""
    groups: list[list[tuple[_Span, list[_Span]]]] = []
    for one, held in spans:
        before, kept = groups[-1][-1] if groups else (one, held)
        end_s = max((other.end_s for other, _ in groups[-1]), default=0.0) if groups else one.start_s
        if end_s <= one.start_s:
            groups.append([(one, held)])
            continue
        shorter_s = min(before.end_s - before.start_s, one.end_s - one.start_s)
        if len(groups[-1]) == 1 and end_s - one.start_s < min(LATE_S, shorter_s / 2):
            groups[-1] = [(replace(before, end_s=one.start_s), kept)]  # it was noted a little late
            groups.append([(one, held)])
        else:
            groups[-1].append((one, held))
    return groups


def _concurrent(node: ExplainNode) -> dict[str, Any]:
    return {**(node.detail or {}), "concurrent": True, "start_s": node.start_s}


def _node(span: _Span, children: Sequence[ExplainNode]) -> ExplainNode:
    return ExplainNode(
        *(span.name, span.end_s - span.start_s, UNSET, span.detail or UNSET, tuple(children) or UNSET),
        start_s=span.start_s,
        error=span.error or UNSET,
        span_id=span.span_id or UNSET,
    )
