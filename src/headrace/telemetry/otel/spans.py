"""The spans of a call that has ended: one for the call, and one for each of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace as api
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
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
from headrace.telemetry.task_spans import task_spans
from headrace.telemetry.trace_context import SAMPLED, TraceContext

SCOPE = "headrace"
KINDS = {"attempt": SpanKind.CLIENT, "sql": SpanKind.CLIENT}
"""Parts that ask another service or an engine of databases."""
_NS = 1_000_000_000
_UNSET = Status()


class SpanWriter:
    """Writes the spans of calls that were sampled, on one thread. All of a call is known by then: spans are
    made whole and go to the processor at once, which costs much less than a tracer's `start_span`."""

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self._processor, self._resource = processor, resource
        self._scope, self._limits = InstrumentationScope(SCOPE), SpanLimits()

    def write(self, call: EndedCall) -> Context:
        """The spans of a call; the context is that of its own."""
        trace, parent = call.trace, _caller(call.trace)
        own = SpanContext(
            *(int(trace.trace_id, 16), int(trace.span_id, 16), False, TraceFlags(trace.flags)),
            parent.trace_state if parent else None,
        )
        if trace.flags & SAMPLED:
            self._write_parts(call, own)
            has_failed = call.error is not None or call.status >= 500
            self._end(
                f"{names.operation_of(call.path)} {call.model}".strip(),
                *(own, parent, SpanKind.SERVER, call_attributes(call)),
                *(call.arrived_s, call.arrived_s + call.total_s),
                Status(StatusCode.ERROR, call.error) if has_failed else _UNSET,
            )
        return api.set_span_in_context(NonRecordingSpan(own), Context())

    def _write_parts(self, call: EndedCall, own: SpanContext) -> None:
        """Spans of the parts, each a child of what it is a part of."""
        contexts = {call.trace.span_id: own}
        tree = explain(call.stages, call.traces, call.total_s)
        for part in task_spans(tree, call.trace.span_id):
            about, kind = described(part), KINDS.get(part.name, SpanKind.INTERNAL)
            context = SpanContext(
                own.trace_id, int(part.span_id, 16), False, own.trace_flags, own.trace_state
            )
            self._end(
                *(about.name, context, contexts[part.parent_id], kind, about.attributes),
                *(call.arrived_s + part.start_s, call.arrived_s + part.end_s),
                Status(StatusCode.ERROR, part.error) if part.error else _UNSET,
            )
            contexts[part.span_id] = context

    def _end(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        start_s: float,
        end_s: float,
        status: Status,
    ) -> None:
        span = ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            self._within_limits(attributes),
            kind=kind,
            status=status,
            start_time=_ns(start_s),
            end_time=_ns(end_s),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)

    def _within_limits(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """What OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT and _VALUE_LENGTH_LIMIT leave of the attributes."""
        count, length = self._limits.max_span_attributes, self._limits.max_span_attribute_length
        if length is None and (count is None or len(attributes) <= count):
            return attributes
        return BoundedAttributes(count, attributes, max_value_len=length)


def parent_of(trace: TraceContext) -> Context:
    """The caller's span as a context, an empty one where there is none."""
    parent = _caller(trace)
    return Context() if parent is None else api.set_span_in_context(NonRecordingSpan(parent), Context())


def _caller(trace: TraceContext) -> SpanContext | None:
    if not trace.parent_id:
        return None
    return SpanContext(
        int(trace.trace_id, 16),
        int(trace.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(trace.flags),
        trace_state=TraceState.from_header([trace.state]) if trace.state else TraceState(),
    )


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
