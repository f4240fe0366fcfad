"""The spans of a call that has ended: one for the call, and one for each of its parts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

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
from headrace.telemetry.explain import explain
from headrace.telemetry.otel import names
from headrace.telemetry.otel.parts import described
from headrace.telemetry.task_spans import TaskSpan, task_spans
from headrace.telemetry.trace_context import TraceContext

SCOPE = "headrace"
KINDS = {"attempt": SpanKind.CLIENT, "sql": SpanKind.CLIENT}
"""Parts that ask another service or an engine of databases."""
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
        tree = explain(call.stages, call.traces, call.total_s)
        self._write_parts(task_spans(tree, call.trace.span_id), call, own)
        root.end(_ns(call.arrived_s + call.total_s))
        return own

    def _write_parts(self, parts: Iterable[TaskSpan], call: EndedCall, own: Context) -> None:
        """Spans of the parts, each a child of what it is a part of."""
        contexts = {call.trace.span_id: own}
        for part in parts:
            about = described(part)
            self._ids.give(span_id=part.span_id)
            span = self._tracer.start_span(
                *(about.name, contexts[part.parent_id], KINDS.get(part.name, SpanKind.INTERNAL)),
                about.attributes,
                start_time=_ns(call.arrived_s + part.start_s),
            )
            if part.error:
                span.set_status(Status(StatusCode.ERROR, part.error))
            span.end(_ns(call.arrived_s + part.end_s))
            contexts[part.span_id] = api.set_span_in_context(span)


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


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
