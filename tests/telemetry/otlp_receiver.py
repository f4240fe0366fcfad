"""A receiver of OTLP over HTTP in a thread of this process. Needs headrace[otel]."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What was received: spans, metrics by name, and the bytes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resources: list[Any] = []
        self.bytes = b""
        self.exemplars: set[str] = set()  # ids of traces; they come once
        self.requests = 0

    def take_spans(self, request: Any) -> None:
        self.bytes += request.SerializeToString()
        for resource in request.resource_spans:
            self.resources.append(resource.resource)
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def take_metrics(self, request: Any) -> None:
        self.bytes += request.SerializeToString()
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}
                points = [point for one in scope.metrics for point in one.histogram.data_points]
                self.exemplars |= {one.trace_id.hex() for point in points for one in point.exemplars}


@contextmanager
def http_receiver(status: int = 200) -> Iterator[tuple[str, Receiver]]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            received.requests += 1
            if status == 200 and self.path == "/v1/traces":
                received.take_spans(ExportTraceServiceRequest.FromString(data))
            elif status == 200 and self.path == "/v1/metrics":
                received.take_metrics(ExportMetricsServiceRequest.FromString(data))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def attributes(one: Any) -> dict[str, Any]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in one.attributes}


def wait_until(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.01)
