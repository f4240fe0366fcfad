"""The spans of a call that has ended: one for the call, and one for each of its parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from headrace.telemetry.ended_call import EndedCall
from headrace.telemetry.explain import EngineTrace, Stage
from headrace.telemetry.otel import names
from headrace.telemetry.trace_context import TraceContext

SCOPE = "headrace"
REMOTE = "attempt"
"""Stages of this name asked another service, whose spans have theirs as parent."""
_NS = 1_000_000_000


class CallIds(IdGenerator):
    """Ids that were given out when the call arrived, before its span is made; others are random."""

    def __init__(self) -> None:
        self._random, self._next = RandomIdGenerator(), threading.local()

    def give(self, trace_id: str = "", span_id: str = "") -> None:
        """The next span that this thread starts has these."""
        self._next.trace_id, self._next.span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        """See `IdGenerator`."""
        given, self._next.trace_id = getattr(self._next, "trace_id", ""), ""
        return int(given, 16) if given else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        """See `IdGenerator`."""
        given, self._next.span_id = getattr(self._next, "span_id", ""), ""
        return int(given, 16) if given else self._random.generate_span_id()


class _Part(Struct, frozen=True):
    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Any]
    span_id: str = ""


class SpanWriter:
    """Writes the spans of calls, on one thread."""

    def __init__(self, provider: TracerProvider, ids: CallIds) -> None:
        self._tracer, self._ids = provider.get_tracer(SCOPE), ids

    def write(self, call: EndedCall) -> Context:
        """The spans of a call; the context is that of its own."""
        self._ids.give(call.trace.trace_id, call.trace.span_id)
        operation = names.operation_of(call.path)
        root = self._tracer.start_span(
            f"{operation} {call.model}".strip(),
            parent_of(call.trace),
            SpanKind.SERVER,
            call_attributes(call),
            start_time=_ns(call.arrived_s),
        )
        if call.error is not None or call.status >= 500:
            root.set_status(Status(StatusCode.ERROR, call.error))
        own = api.set_span_in_context(root)
        self._write_parts(call, own)
        root.end(_ns(call.arrived_s + call.total_s))
        return own

    def _write_parts(self, call: EndedCall, own: Context) -> None:
        """Spans of the parts, each within the smallest one that holds it."""
        parts = sorted(parts_of(call), key=lambda part: (part.start_s, -part.end_s))
        around: list[tuple[_Part, Context]] = []
        for part in parts:
            while around and not _holds(around[-1][0], part):
                around.pop()
            is_remote = part.name == REMOTE
            self._ids.give(span_id=part.span_id)
            span = self._tracer.start_span(
                part.name,
                around[-1][1] if around else own,
                SpanKind.CLIENT if is_remote else SpanKind.INTERNAL,
                part.attributes,
                start_time=_ns(call.arrived_s + part.start_s),
            )
            span.end(_ns(call.arrived_s + part.end_s))
            around.append((part, api.set_span_in_context(span)))


def parent_of(trace: TraceContext) -> Context:
    """The caller's span as a context, an empty one where there is none."""
    if not trace.parent_id:
        return Context()
    parent = SpanContext(
        int(trace.trace_id, 16),
        int(trace.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(trace.flags),
        trace_state=TraceState.from_header([trace.state]) if trace.state else TraceState(),
    )
    return api.set_span_in_context(NonRecordingSpan(parent), Context())


def call_attributes(call: EndedCall) -> dict[str, Any]:
    """Of a call's own span. What was said is in none of them."""
    found: dict[str, Any] = {
        names.OPERATION: names.operation_of(call.path),
        names.PROVIDER: names.HEADRACE,
        names.REQUEST_MODEL: call.model,
        names.RESPONSE_MODEL: call.model,
        names.FINISH_REASONS: tuple(call.finish_reasons) or None,
        names.INPUT_TOKENS: call.prompt_tokens,
        names.CACHED_TOKENS: call.cached_tokens,
        names.OUTPUT_TOKENS: call.completion_tokens,
        names.ERROR_TYPE: call.error,
        names.HTTP_METHOD: call.method,
        names.URL_PATH: call.path,
        names.HTTP_STATUS: call.status,
        "headrace.request.id": call.id,
        "headrace.explain.path": f"/v1/requests/{call.id}/explain",
    }
    for field, name in names.REQUEST_PARAMETERS.items():
        found[name] = getattr(call.params, field, None)
    return {name: value for name, value in found.items() if value is not None}


def parts_of(call: EndedCall) -> Iterator[_Part]:
    """The parts of a call, in seconds since its arrival."""
    for stage in call.stages:
        yield _of_stage(stage)
    for number, one in enumerate(call.traces):
        yield from _of_engine(one, number, len(call.traces))


def _of_stage(stage: Stage) -> _Part:
    detail = {name: value for name, value in stage.detail.items() if name != "span_id"}
    span_id = str(stage.detail.get("span_id", ""))
    return _Part(stage.name, stage.start_s, stage.end_s, _attributes(detail), span_id)


def _of_engine(trace: EngineTrace, number: int, count: int) -> Iterator[_Part]:
    at_s, timing, usage = trace.submitted_s, trace.timing, trace.usage
    detail = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_miss": usage.cache_miss_reason,
    }
    name = "engine" if count == 1 else f"prompt {number}"
    yield _Part(name, at_s, max(trace.ended_s, at_s + timing.total_s), _attributes(detail))
    yield _Part("queue", at_s, at_s + timing.queue_s, {})
    chunk = 0
    for share in trace.shares:
        chunk += share.kind != "decode"
        facts = {
            "tokens": share.tokens,
            "steps": share.steps,
            "batch": share.rows / max(share.steps, 1),
            "predicted_s": share.predicted_s or None,
            "executor_s": share.run_s,
            "drafted": share.drafted or None,
            "accepted": share.accepted if share.drafted else None,
        }
        name = f"prefill {chunk}" if share.kind == "prefill" else share.kind
        yield _Part(name, at_s + share.start_s, at_s + share.end_s, _attributes(facts))


def _attributes(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"headrace.{name}": value
        for name, value in detail.items()
        if isinstance(value, str | int | float | bool)
    }


def _holds(outer: _Part, inner: _Part) -> bool:
    return outer.start_s <= inner.start_s and inner.end_s <= outer.end_s


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
