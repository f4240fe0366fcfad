"""The spans of a call, before they are the SDK's or bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from opentelemetry.trace import SpanContext, SpanKind


class SpanFacts(Struct, frozen=True):
    """One span. Ids are lower-case hex, `parent_id` is "" where there is none; times are Unix nanoseconds.
    `dropped` attributes were over the SDK's limit; `error` is what the span ended with."""

    name: str
    span_id: str
    parent_id: str
    kind: SpanKind
    attributes: Mapping[str, Any]
    dropped: int
    start_ns: int
    end_ns: int
    error: str | None


class CallSpans(Struct, frozen=True):
    """All spans of a call: `context` is that of its own span `span_id`, `parent` the caller's."""

    context: SpanContext
    parent: SpanContext | None
    span_id: str
    spans: Sequence[SpanFacts]


class SpanSink(Protocol):
    """Gives spans to a processor."""

    def put(self, call: CallSpans) -> None: ...
