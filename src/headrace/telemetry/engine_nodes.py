"""The nodes of what an engine did for the prompts of a request, or would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from headrace.engine.request import PageMove, Usage
from headrace.engine.step_share import StepShare
from headrace.telemetry.explain_node import OTHER, TURN, EngineTrace, ExplainNode

MIN_SHOWN_S = 5e-5
"""Waiting that is shorter has no node of its own."""


def add_gap(children: list[ExplainNode], seconds: float, start_s: float) -> None:
    if seconds >= MIN_SHOWN_S:
        children.append(ExplainNode(OTHER, seconds, start_s=start_s))


def engine_nodes(
    traces: Sequence[EngineTrace], offset_s: float, *, is_predicted: bool = False
) -> tuple[ExplainNode, ...]:
    parts = _predicted_parts if is_predicted else _of_prompt
    if len(traces) == 1:
        return tuple(parts(traces[0], offset_s))
    return tuple(
        ExplainNode(
            f"prompt {index}",
            0.0 if is_predicted else max(one.timing.total_s, one.ended_s - one.submitted_s),
            one.timing.total_s or UNSET if is_predicted else UNSET,
            detail={"concurrent": True, "start_s": offset_s + one.submitted_s},
            children=tuple(parts(one, offset_s)),
            start_s=UNSET if is_predicted else offset_s + one.submitted_s,
        )
        for index, one in enumerate(traces)
    )


def _predicted_parts(trace: EngineTrace, offset_s: float) -> list[ExplainNode]:
    found, chunk = [ExplainNode("queue", 0.0, trace.timing.queue_s)], 0
    for share in trace.shares:
        chunk += share.kind != "decode"
        found.append(replace(_of_share(share, trace.usage, chunk, 0.0), measured_s=0.0, start_s=UNSET))
    return found


def _of_prompt(trace: EngineTrace, offset_s: float) -> list[ExplainNode]:
    """Queue, steps, the waiting between them, and what lies between the engine and the reply."""
    timing, usage, from_s = trace.timing, trace.usage, offset_s + trace.submitted_s
    found, at_s = _moves(trace.moves, from_s)
    found.append(ExplainNode("queue", timing.queue_s, start_s=from_s + at_s))
    at_s, chunk = at_s + timing.queue_s, 0
    for share in trace.shares:
        waited_s = share.start_s - at_s
        if waited_s >= MIN_SHOWN_S:
            found.append(ExplainNode(TURN, waited_s, start_s=from_s + at_s))
        chunk += share.kind != "decode"
        found.append(_of_share(share, usage, chunk, from_s))
        at_s = max(at_s, share.end_s)
    end_s = max(timing.total_s, trace.ended_s - trace.submitted_s)
    add_gap(found, end_s - at_s, from_s + at_s)
    return found


def _moves(moves: Sequence[PageMove], from_s: float) -> tuple[list[ExplainNode], float]:
    """Of pages between replicas, with what lies before each; when the last one ended."""
    found: list[ExplainNode] = []
    at_s = 0.0
    for move in moves:
        add_gap(found, move.start_s - at_s, from_s + at_s)
        detail: dict[str, Any] = {
            "why": move.reason,
            "tokens": move.tokens,
            "bytes": move.nbytes,
            "from": move.source,
            "to": move.target,
            "after_last_page_s": move.after_s,
        }
        if move.problem:
            detail["problem"] = move.problem
        found.append(ExplainNode("move pages", move.seconds, detail=detail, start_s=from_s + move.start_s))
        at_s = move.start_s + move.seconds
    return found, at_s


def _of_share(share: StepShare, usage: Usage, chunk: int, from_s: float) -> ExplainNode:
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
    return ExplainNode(*(name, wall_s, share.predicted_s or UNSET, detail), start_s=from_s + share.start_s)
