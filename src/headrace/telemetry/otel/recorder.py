"""Records calls by the SDK: exporters by the standard OTEL_ variables, on threads of their own."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headrace import __version__
from headrace.errors import UsageError
from headrace.telemetry.ended_call import EndedCall
from headrace.telemetry.otel import names
from headrace.telemetry.otel.encoded import SpanEncoder, sender
from headrace.telemetry.otel.spans import SCOPE, ReadableSink, SpanWriter, parent_of
from headrace.telemetry.trace_context import SAMPLED, TraceContext

LOG = logging.getLogger("headrace.telemetry")
MAX_WAITING = 2048  # calls, as many as the SDK lets spans wait
CLOSE_S = 5.0
RECORD_EVERY_S = 0.1
_NO_TRACE = Context()
PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}


class OtelRecorder:
    """See `Tracing`. Spans wait in the SDK's own bounded queue; what does not fit is dropped."""

    def __init__(self) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it warns of each attempt
        resource = Resource.create({SERVICE_VERSION: __version__, **_default_name()})
        self._outage = Outage()
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = _exporter("TRACES", "trace_exporter", "OTLPSpanExporter")
        self._spans = None
        if exporter is not None:
            spans = _Spans(exporter, self._outage)
            processor = BatchSpanProcessor(spans)
            self._traces.add_span_processor(processor)
            scope = InstrumentationScope(SCOPE)
            if spans.takes_bytes:
                spans.encoder = encoder = SpanEncoder(processor, resource, scope)
                self._spans = SpanWriter(encoder)
            else:
                self._spans = SpanWriter(ReadableSink(processor, resource, scope))
        metrics = _exporter("METRICS", "metric_exporter", "OTLPMetricExporter")
        readers = [] if metrics is None else [PeriodicExportingMetricReader(_Metrics(metrics, self._outage))]
        self._metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._instruments = Instruments(self._metrics)
        self._waiting: deque[EndedCall] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-otel", daemon=True)
        self._thread.start()
        self.dropped = 0
        """Calls that were not recorded because too many waited."""

    def begin(self, trace: TraceContext, path: str) -> TraceContext:
        """See `Tracing.begin`: the SDK's sampler decides."""
        if self._spans is None:
            return trace
        found = self._traces.sampler.should_sample(
            parent_of(trace), int(trace.trace_id, 16), names.operation_of(path)
        )
        is_sampled = found.decision is Decision.RECORD_AND_SAMPLE
        return TraceContext(
            trace.trace_id,
            trace.span_id,
            trace.parent_id,
            SAMPLED * is_sampled,
            trace.state,
            is_recorded=True,
        )

    def ended(self, call: EndedCall) -> None:
        """See `Tracing.ended`."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(call)
        else:
            self.dropped += 1

    def close(self) -> None:
        """See `Tracing.close`."""
        closing = threading.Thread(target=self._shut_down, name="headrace-otel-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _shut_down(self) -> None:
        self._closing.set()
        self._thread.join()
        self._traces.shutdown()
        self._metrics.shutdown()

    def _work(self) -> None:
        """Record what has ended, many calls at a time: to wake a thread for each costs requests more."""
        is_last = False
        while not is_last:
            is_last = self._closing.wait(RECORD_EVERY_S)
            while self._waiting:
                self._record(self._waiting.popleft())
                time.sleep(0)  # lets the threads of requests go on

    def _record(self, call: EndedCall) -> None:
        try:
            if not call.trace.is_recorded:  # it did not come by HTTP: a line of a batch
                call = replace(call, trace=self.begin(call.trace, call.path))
            context = self._spans.write(call) if self._spans is not None else Context()
            self._instruments.record(call, context)
        except Exception:  # what is wrong here must not look like a failed request
            LOG.exception("a call cannot be recorded")


class Instruments:
    """The GenAI metrics of a server."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)

        def histogram(name: str, unit: str, text: str) -> Any:
            return meter.create_histogram(
                name, unit, text, explicit_bucket_boundaries_advisory=names.BUCKETS[name]
            )

        self._duration = histogram(names.REQUEST_DURATION, "s", "Time of a request.")
        self._first = histogram(names.TIME_TO_FIRST_TOKEN, "s", "Time to the first token of an answer.")
        self._each = histogram(names.TIME_PER_OUTPUT_TOKEN, "s", "Time per token after the first.")
        self._tokens = histogram(names.TOKEN_USAGE, "{token}", "Tokens of prompts and answers.")

    def record(self, call: EndedCall, context: Context) -> None:
        """Count a call; exemplars of what one waits for name its trace."""
        common = {
            names.OPERATION: names.operation_of(call.path, call.status),
            names.PROVIDER: names.HEADRACE,
            names.REQUEST_MODEL: call.model,
        }
        failed = {names.ERROR_TYPE: call.error} if call.error is not None else {}
        self._duration.record(call.total_s, common | failed, context)
        if call.prompt_tokens is not None:
            self._tokens.record(call.prompt_tokens, common | {names.TOKEN_TYPE: "input"}, _NO_TRACE)
        if call.completion_tokens:
            self._tokens.record(call.completion_tokens, common | {names.TOKEN_TYPE: "output"}, _NO_TRACE)
        if call.first_token_s is not None and call.completion_tokens:
            self._first.record(call.first_token_s, common, context)
            if call.completion_tokens > 1:
                left_s = call.total_s - call.first_token_s
                self._each.record(left_s / (call.completion_tokens - 1), common, context)


class Outage:
    """Says once that a collector does not take what it is sent, and once that it does again."""

    def __init__(self) -> None:
        self._lasts = False
        self._lock = threading.Lock()

    def told(self, is_taken: bool) -> None:
        """What was sent last was taken, or not."""
        with self._lock:
            changed, self._lasts = self._lasts is is_taken, not is_taken
        if changed and not is_taken:
            LOG.warning(
                "the OpenTelemetry collector does not take what it is sent: spans and metrics are dropped "
                "until it does; check OTEL_EXPORTER_OTLP_ENDPOINT"
            )
        elif changed:
            LOG.warning("the OpenTelemetry collector takes spans and metrics again")


class _Spans(SpanExporter):
    """With an `encoder` it is given that one's spans."""

    encoder: SpanEncoder | None = None

    def __init__(self, inner: SpanExporter, outage: Outage) -> None:
        self._inner, self._outage, self._send = inner, outage, sender(inner)

    @property
    def takes_bytes(self) -> bool:
        return self._send is not None

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        result = _tried(lambda: self._sent(spans), SpanExportResult.FAILURE)
        self._outage.told(result is SpanExportResult.SUCCESS)
        return result

    def _sent(self, spans: Sequence[Any]) -> SpanExportResult:
        if self._send is None or self.encoder is None:
            return self._inner.export(spans)
        is_taken = self._send(self.encoder.request(spans))
        return SpanExportResult.SUCCESS if is_taken else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _Metrics(MetricExporter):
    def __init__(self, inner: MetricExporter, outage: Outage) -> None:
        super().__init__(
            preferred_temporality=inner._preferred_temporality,  # pyright: ignore[reportPrivateUsage]
            preferred_aggregation=inner._preferred_aggregation,  # pyright: ignore[reportPrivateUsage]
        )
        self._inner: Any = inner  # whose keywords have no types
        self._outage = outage

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = _tried(lambda: self._inner.export(metrics_data, timeout_millis), MetricExportResult.FAILURE)
        self._outage.told(result is MetricExportResult.SUCCESS)
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _tried(work: Callable[[], Any], failure: Any) -> Any:
    try:
        return work()
    except Exception:
        LOG.debug("an export failed", exc_info=True)
        return failure


def _default_name() -> dict[str, str]:
    """The service's name, unless the variables have one."""
    given = os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return {} if given else {SERVICE_NAME: names.HEADRACE}


def _exporter(signal: str, module: str, kind: str) -> Any:
    """The exporter of "TRACES" or "METRICS"; None where OTEL_TRACES_EXPORTER is none."""
    wanted = os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp")
    if wanted == "none":
        return None
    if wanted != "otlp":
        raise UsageError(f"OTEL_{signal}_EXPORTER is {wanted!r}: otlp and none are known")
    variable = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    protocol = os.environ.get(variable) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if protocol not in PROTOCOLS:
        raise UsageError(f"the protocol of OTLP is {protocol!r}: {' and '.join(PROTOCOLS)} are known")
    package = f"opentelemetry.exporter.otlp.proto.{PROTOCOLS[protocol]}.{module}"
    make = getattr(importlib.import_module(package), kind)
    if PROTOCOLS[protocol] != "http" or any(name in os.environ for name in _own_sessions(signal)):
        return make()
    bounded = importlib.import_module("headrace.telemetry.otel.bounded_session")  # gRPC needs no requests
    return make(session=bounded.BoundedSession())


def _own_sessions(signal: str) -> tuple[str, str]:
    """The SDK's variables that name whose session sends."""
    return (
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
        f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}_CREDENTIAL_PROVIDER",
    )
