"""OpenTelemetry against real receivers of OTLP, over HTTP and gRPC, and against one that is not there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from fake import FakeModel
from in_process import Running, running_server
from otlp_receiver import Receiver, attributes, http_receiver, wait_until

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.telemetry.otel import recorder
from headrace.telemetry.otel.encoded import SpanEncoder
from headrace.telemetry.otel.span_facts import CallSpans, SpanFacts
from headrace.telemetry.otel.spans import ReadableSink

CHAT = "/v1/chat/completions"
SECRET = "a word that nobody may read"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": SECRET}],
    "chat_template_kwargs": {"in_scope": False},
    "max_tokens": 6,
    "temperature": 0.5,
}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "mine"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets variables, with short intervals."""

    def put(**variables: str) -> None:
        times = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
        for name, value in (times | variables).items():
            monkeypatch.setenv(name, value)

    return put


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    loaded = load_model("mini", EngineOptions(max_num_seqs=4))
    yield loaded
    loaded.close()


def check_trace(received: Receiver) -> dict[str, Any]:
    """One trace of the caller's, whose parts lie within the call; spans by name."""
    spans = {span.name: span for span in received.spans}
    assert {span.trace_id.hex() for span in received.spans} == {TRACE}
    root = spans["chat mini"]
    assert root.parent_span_id.hex() == PARENT and root.trace_state == "vendor=1"
    ids = {span.span_id for span in received.spans}
    for span in received.spans:
        assert span is root or span.parent_span_id in ids
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 5_000_000
    assert {"prepare", "template", "tokenize", "engine", "queue", "prefill 1", "decode"} <= spans.keys()
    assert spans["template"].parent_span_id == spans["prepare"].span_id
    assert spans["decode"].parent_span_id == spans["engine"].span_id
    return spans


def test_spans_and_metrics_over_http(model: Any, quick: Callable[..., None]) -> None:
    with http_receiver() as (url, received):
        quick(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test")
        with running_server(model) as server:
            assert server.http().post(CHAT, json=BODY, headers=HEADERS).status_code == 200
            server.http().get("/v1/models")
        spans = check_trace(received)
    said = attributes(spans["chat mini"])
    assert said["gen_ai.operation.name"] == "chat" and said["gen_ai.provider.name"] == "headrace"
    assert said["gen_ai.request.model"] == "mini" and said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.request.max_tokens"] == 6 and said["gen_ai.usage.output_tokens"] > 0
    assert said["gen_ai.usage.input_tokens"] > 0 and said["http.response.status_code"] == 200
    assert said["headrace.explain.path"] == "/v1/requests/mine/explain"
    assert attributes(spans["decode"])["headrace.steps"] >= 1
    names = {f"gen_ai.server.{name}" for name in ("request.duration", "time_to_first_token")}
    assert names | {"gen_ai.client.token.usage"} <= received.metrics.keys()
    [point] = received.metrics["gen_ai.server.request.duration"].histogram.data_points
    assert point.count == 1 and list(point.explicit_bounds)[:2] == [0.01, 0.02]
    assert received.exemplars == {TRACE}
    resource = attributes(received.resources[0])
    assert resource["service.name"] == "headrace" and resource["deployment.environment.name"] == "test"
    assert SECRET.encode() not in received.bytes


def test_spans_over_grpc(model: Any, quick: Callable[..., None]) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra otel is not installed")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra otel is not installed")
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

    received = Receiver()

    class Traces(service.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.take_spans(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(Traces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        quick(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_METRICS_EXPORTER="none",
        )
        with running_server(model) as running:
            assert running.http().post(CHAT, json=BODY, headers=HEADERS).status_code == 200
        check_trace(received)
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("kind", ["refuses", "fails", "redirects"])
def test_a_collector_that_does_not_take_them_touches_no_request(
    quick: Callable[..., None], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    with http_receiver(status=302 if kind == "redirects" else 400) as (url, _):
        endpoint = "http://127.0.0.1:9" if kind == "refuses" else url
        quick(
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_METRICS_EXPORTER="none"
        )
        with running_server(FakeModel()) as server:
            http = server.http()
            for _ in range(20):
                assert http.post(CHAT, json=BODY).status_code == 200
            wait_until(lambda: "does not take" in caplog.text)
            for _ in range(20):
                assert http.post(CHAT, json=BODY).status_code == 200
    said = [one for one in caplog.records if one.name.startswith(("headrace.telemetry", "opentelemetry"))]
    assert [one.levelname for one in said] == ["WARNING"]


def test_what_is_not_sampled_is_not_sent(quick: Callable[..., None]) -> None:
    with http_receiver() as (url, received):
        quick(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRICS_EXPORTER="none")
        with running_server(FakeModel()) as server:
            unsampled = HEADERS | {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            assert server.http().post(CHAT, json=BODY, headers=unsampled).status_code == 200
            assert server.http().post(CHAT, json={"n": 0}).status_code == 400
    [span] = received.spans  # of the one that began here
    assert span.trace_id.hex() != TRACE and span.status.message == "missing_required_parameter"


def call_spans(remote: bool, error: str | None) -> CallSpans:
    """A call with all that a span can have, and a part of it."""
    state = TraceState.from_header(["vendor=1,other=2"]) if remote else None
    parent = SpanContext(2**127 + 5, 7, is_remote=True, trace_state=state) if remote else None
    own = SpanContext(2**127 + 5, 2**63 + 1, False, TraceFlags(1), state)
    values = {"text": "ünï\U0001f600 " * 40, "none": "", "zero": 0, "one": 1, "minus": -5, "large": 2**40}
    values |= {
        "yes": True,
        "no": False,
        "float": 0.5,
        "null": 0.0,
        "whole": 1.0,
        "list": ("a", "", "b" * 300),
    }
    id_, start = f"{own.span_id:016x}", 1_700_000_000 * 10**9
    root = SpanFacts(
        "chat mini", id_, f"{7:016x}" if remote else "", SpanKind.SERVER, values, 0, start, start + 300, error
    )
    kinds = zip((SpanKind.CLIENT, SpanKind.INTERNAL), ("timeout", None), strict=True)
    parts = [
        SpanFacts(f"part {kind}", f"{at + 9:016x}", id_, kind, {}, 0, start, start + at, failed)
        for at, (kind, failed) in enumerate(kinds)
    ]
    return CallSpans(own, parent, id_, [*parts, root])


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("error", [None, "", "timeout"])
def test_spans_are_encoded_as_the_sdk_encodes_them(remote: bool, error: str | None) -> None:
    made: list[Any] = []

    class Processor(SpanProcessor):
        def on_end(self, span: Any) -> None:
            made.append(span)

    about = Resource({"service.name": "headrace", "a": 1}, "http://schema"), InstrumentationScope("headrace")
    encoder = SpanEncoder(Processor(), *about)
    calls = [call_spans(remote, error)] * 2
    for call in calls:
        encoder.put(call)
    own = ExportTraceServiceRequest.FromString(encoder.request(made))
    made.clear()
    for call in calls:
        ReadableSink(Processor(), *about).put(call)
    assert own == encode_spans(made) and len(own.resource_spans[0].scope_spans[0].spans) == 6


def test_an_exporter_that_takes_no_bytes_gets_spans(
    model: Any, quick: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "sender", lambda exporter: None)
    with http_receiver() as (url, received):
        quick(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRICS_EXPORTER="none")
        with running_server(model) as server:
            assert server.http().post(CHAT, json=BODY, headers=HEADERS).status_code == 200
        check_trace(received)


def test_limits_of_the_sdk_are_kept(quick: Callable[..., None]) -> None:
    with http_receiver() as (url, received):
        quick(
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_METRICS_EXPORTER="none",
            OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="3",
            OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT="2",
        )
        with running_server(FakeModel()) as server:
            assert server.http().post(CHAT, json=BODY).status_code == 200
    [root] = (one for one in received.spans if not one.parent_span_id)
    said = attributes(root)
    assert len(said) == 3 and root.dropped_attributes_count > 5
    assert all(len(one) <= 2 for one in said.values() if isinstance(one, str))


def test_lines_of_a_batch_are_calls_of_their_own(quick: Callable[..., None], tmp_path: Path) -> None:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}
    with http_receiver() as (url, received):
        quick(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRICS_EXPORTER="none")
        with running_server(FakeModel(), store=tmp_path / "store.sqlite3") as server:
            client = server.openai()
            file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
            client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            wait_until(lambda: any(one.name.startswith("chat") for one in received.spans))
    roots = [one for one in received.spans if one.name.startswith("chat")]
    assert len(roots) == 1 and not roots[0].parent_span_id
    assert {one.trace_id for one in received.spans if one.parent_span_id} <= {roots[0].trace_id}


def test_no_variable_no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(server: Running) -> bool:
        return server.server._service.tracing is None

    with running_server(FakeModel()) as server:
        assert off(server)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with running_server(FakeModel()) as server:
        assert off(server)
