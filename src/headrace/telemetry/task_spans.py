"""The spans of a call, made of its tree: the same ones for OpenTelemetry and for headrace.task_history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct

from headrace.telemetry.explain_node import OTHER, PARALLEL, TURN, ExplainNode

_NO_WORK = frozenset({OTHER, PARALLEL, TURN})


class TaskSpan(Struct, frozen=True):
    """A part of a call. Seconds count from the call's arrival."""

    span_id: str
    parent_id: str
    name: str
    start_s: float
    end_s: float
    detail: Mapping[str, Any]
    error: str = ""


def task_spans(root: ExplainNode, span_id: str) -> Iterator[TaskSpan]:
    """The parts of a call whose own span is `span_id`, what holds a part before it. Their ids follow from
    that of the call and their places, so that they are the same whenever they are made."""
    for place, node in enumerate(root.children or ()):
        yield from _within(node, span_id, f"{span_id}/{place}")


def _within(node: ExplainNode, parent_id: str, path: str) -> Iterator[TaskSpan]:
    own_id = parent_id
    if node.name not in _NO_WORK:
        own_id = node.span_id or _id_of(path)
        start_s = node.start_s or 0.0
        detail = {key: value for key, value in (node.detail or {}).items() if key not in ("start_s",)}
        yield TaskSpan(
            *(own_id, parent_id, node.name, start_s, start_s + node.measured_s, detail),
            error="" if node.error is UNSET else node.error,
        )
    for place, child in enumerate(node.children or ()):
        yield from _within(child, own_id, f"{path}/{place}")


def _id_of(path: str) -> str:
    return hashlib.blake2b(path.encode(), digest_size=8).hexdigest()
