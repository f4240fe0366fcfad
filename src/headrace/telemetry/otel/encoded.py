"""Spans as bytes of OTLP. The SDK's encoder makes a message of protobuf for each attribute, which takes four
times as long as all else about a span; most attributes are the same ones again, whose bytes are kept here."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind

from headrace.telemetry.otel.span_facts import CallSpans, SpanFacts

KEPT = 4096  # attributes whose bytes are remembered
MAX_KEPT = 128  # characters of one, or its entries
_INT_MASK = (1 << 64) - 1
# The fields of a span by their tags: numbers and wire types of opentelemetry/proto/trace/v1/trace.proto.
_TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_STATE, _NAME, _ATTRIBUTE, _DROPPED, _STATUS, _FLAGS = (
    b"\x1a",
    b"\x2a",
    b"\x4a",
    b"\x50",
    b"\x7a",
    b"\x85\x01",
)
_TIMES = struct.Struct("<cQcQ")
_KINDS: Mapping[SpanKind, bytes] = {
    SpanKind.INTERNAL: b"\x30\x01",
    SpanKind.SERVER: b"\x30\x02",
    SpanKind.CLIENT: b"\x30\x03",
}
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
_NO_STATUS = _STATUS + b"\x00"
_OWN_FLAGS = _FLAGS + _HAS_IS_REMOTE.to_bytes(4, "little")


class EncodedSpan(Struct, frozen=True):
    """What the SDK's processor of batches takes in the place of a span: it looks whether the `context` is
    sampled. `data` is the Span message."""

    context: SpanContext
    data: bytes


class SpanEncoder:
    """Encodes the spans of calls, and requests of such spans, all of one resource and scope."""

    def __init__(self, processor: SpanProcessor, resource: Resource, scope: InstrumentationScope) -> None:
        self._processor: Any = processor  # which is given no ReadableSpan
        own = SpanContext(1, 1, is_remote=False)
        empty = ReadableSpan("", own, resource=resource, instrumentation_scope=scope)
        [about] = _module("exporter.otlp.proto.common.trace_encoder").encode_spans([empty]).resource_spans
        [of_scope] = about.scope_spans
        url = _text(b"\x1a", of_scope.schema_url) if of_scope.schema_url else b""
        self._scope = _sized(b"\x0a", of_scope.scope.SerializeToString()) + url
        about.ClearField("scope_spans")
        self._resource = about.SerializeToString()

    def put(self, call: CallSpans) -> None:
        """Encode the spans of a call for the processor."""
        context, parent = call.context, call.parent
        state = context.trace_state.to_header() if context.trace_state else ""
        of_trace = _TRACE_ID + context.trace_id.to_bytes(16, "big") + (_text(_STATE, state) if state else b"")
        is_remote = _IS_REMOTE if parent is not None and parent.is_remote else 0
        root_flags = _FLAGS + (_HAS_IS_REMOTE | is_remote).to_bytes(4, "little")
        for span in call.spans:
            is_root = span.span_id == call.span_id
            data = of_trace + _encoded(span) + (root_flags if is_root else _OWN_FLAGS)
            self._processor.on_end(EncodedSpan(context, data))

    def request(self, spans: Sequence[EncodedSpan]) -> bytes:
        """An ExportTraceServiceRequest."""
        sized = b"".join([_sized(b"\x12", one.data) for one in spans])
        return _sized(b"\x0a", self._resource + _sized(b"\x12", self._scope + sized))


def _encoded(span: SpanFacts) -> bytes:
    """What is a span's own of its message."""
    data = _SPAN_ID + bytes.fromhex(span.span_id)
    if span.parent_id:
        data += _PARENT_ID + bytes.fromhex(span.parent_id)
    data += _kept_name(span.name, span.kind) + _TIMES.pack(b"\x39", span.start_ns, b"\x41", span.end_ns)
    for key, value in span.attributes.items():
        data += _attribute(key, value)
    if span.dropped:
        data += _DROPPED + varint(span.dropped)
    if span.error is None:
        return data + _NO_STATUS
    return data + _sized(_STATUS, _text(b"\x12", span.error) + b"\x18\x02")


def sender(exporter: Any) -> Callable[[bytes], bool] | None:
    """What sends a request that is encoded already by one of the SDK's exporters, with its addresses, keys,
    retries and compression; None where this version of it has no such way."""
    client = getattr(exporter, "_client", None)
    post = getattr(client, "export", None)  # over HTTP
    if callable(post):
        return lambda data: bool(getattr(post(data), "success", False))
    export = getattr(exporter, "_export", None)
    if hasattr(client, "Export") and callable(export) and hasattr(exporter, "_translate_data"):
        messages = _module("proto.collector.trace.v1.trace_service_pb2")
        exporter._translate_data = messages.ExportTraceServiceRequest.FromString  # over gRPC
        return lambda data: getattr(export(data), "name", "") == "SUCCESS"
    return None


def _module(name: str) -> Any:
    """A part of the extra whose types are not checked."""
    return importlib.import_module(f"opentelemetry.{name}")


def varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode("utf-8", "replace"))


@lru_cache(maxsize=KEPT)
def _kept_name(name: str, kind: SpanKind) -> bytes:
    return _text(_NAME, name) + _KINDS[kind]


def _attribute(key: str, value: Any) -> bytes:
    if isinstance(value, float) or (not isinstance(value, int) and len(value) > MAX_KEPT):
        return _pair(key, value)
    return _kept_pair(key, value)


def _pair(key: str, value: Any) -> bytes:
    return _sized(_ATTRIBUTE, _text(b"\x0a", key) + _sized(b"\x12", _value(value)))


_kept_pair = lru_cache(maxsize=KEPT, typed=True)(_pair)


def _value(value: Any) -> bytes:
    """An AnyValue."""
    if isinstance(value, str):
        return _text(b"\x0a", value)
    if isinstance(value, bool):
        return b"\x10" + bytes((value,))
    if isinstance(value, int):
        return b"\x18" + varint(value & _INT_MASK)
    if isinstance(value, float):
        return struct.pack("<cd", b"\x21", value)
    return _sized(b"\x2a", b"".join(_sized(b"\x0a", _value(one)) for one in value))
