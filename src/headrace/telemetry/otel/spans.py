"""The spans of a call that has ended: one for the call, and one for each of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from headrace.telemetry.otel.span_facts import CallSpans, SpanFacts, SpanSink
from headrace.telemetry.task_spans import task_spans
from headrace.telemetry.trace_context import SAMPLED, TraceContext

SCOPE = "headrace"
KINDS = {"attempt": SpanKind.CLIENT, "sql": SpanKind.CLIENT}
"""Parts that ask another service or an engine of databases."""
_NS = 1_000_000_000
_UNSET = Status()


class SpanWriter:
    """Writes the spans of calls that were sampled, on one thread. All of a call is known by then: spans are
    made whole, which costs much less than a tracer's `start_span`."""

    def __init__(self, sink: SpanSink) -> None:
        limits = SpanLimits()
        self._sink = sink
        self._count, self._length = limits.max_span_attributes, limits.max_span_attribute_length

    def write(self, call: EndedCall) -> Context:
        """The spans of a call; the context is that of its own."""
        trace, parent = call.trace, _caller(call.trace)
        own = SpanContext(
            *(int(trace.trace_id, 16), int(trace.span_id, 16), False, TraceFlags(trace.flags)),
            parent.trace_state if parent else None,
        )
        if trace.flags & SAMPLED:
            spans = [*self._parts(call), self._root(call)]
            self._sink.put(CallSpans(own, parent, trace.span_id, spans))
        return api.set_span_in_context(NonRecordingSpan(own), Context())

    def _root(self, call: EndedCall) -> SpanFacts:
        attributes, dropped = self._within_limits(call_attributes(call))
        return SpanFacts(
            name=f"{names.operation_of(call.path, call.status)} {call.model}".strip(),
            span_id=call.trace.span_id,
            parent_id=call.trace.parent_id,
            kind=SpanKind.SERVER,
            attributes=attributes,
            dropped=dropped,
            start_ns=_ns(call.arrived_s),
            end_ns=_ns(call.arrived_s + call.total_s),
            error=(call.error or "") if call.error is not None or call.status >= 500 else None,
        )

    def _parts(self, call: EndedCall) -> Iterator[SpanFacts]:
        """Spans of the parts, each a child of what it is a part of."""
        tree = explain(call.stages, call.traces, call.total_s, advises=False)
        for part in task_spans(tree, call.trace.span_id):
            about = described(part)
            attributes, dropped = self._within_limits(about.attributes)
            yield SpanFacts(
                *(about.name, part.span_id, part.parent_id, KINDS.get(part.name, SpanKind.INTERNAL)),
                *(attributes, dropped),
                *(_ns(call.arrived_s + part.start_s), _ns(call.arrived_s + part.end_s)),
                part.error or None,
            )

    def _within_limits(self, attributes: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """What OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT and _VALUE_LENGTH_LIMIT leave of the attributes, and how many
        they do not."""
        count, length = self._count, self._length
        if length is None and (count is None or len(attributes) <= count):
            return attributes, 0
        found = BoundedAttributes(count, attributes, max_value_len=length)
        return found, found.dropped


class ReadableSink:
    """Makes the SDK's own spans, for exporters that take nothing else."""

    def __init__(self, processor: SpanProcessor, resource: Resource, scope: InstrumentationScope) -> None:
        self._processor, self._resource, self._scope = processor, resource, scope

    def put(self, call: CallSpans) -> None:
        """See `SpanSink`."""
        contexts = {call.span_id: call.context}
        for span in reversed(call.spans):  # the call's own span is the last
            contexts.setdefault(span.span_id, _beside(call.context, span.span_id))
        for span in call.spans:
            parent = call.parent if span.span_id == call.span_id else contexts[span.parent_id]
            found = ReadableSpan(
                *(span.name, contexts[span.span_id], parent, self._resource),
                BoundedAttributes(None, span.attributes),
                kind=span.kind,
                status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
                start_time=span.start_ns,
                end_time=span.end_ns,
                instrumentation_scope=self._scope,
            )
            self._processor.on_end(found)


def _beside(context: SpanContext, span_id: str) -> SpanContext:
    """Another span of the same trace."""
    return SpanContext(context.trace_id, int(span_id, 16), False, context.trace_flags, context.trace_state)


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
        names.OPERATION: names.operation_of(call.path, call.status),
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
