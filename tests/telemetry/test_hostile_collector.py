"""What a collector that is hostile, or clients without a key, can make of OpenTelemetry here."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from fake import FakeModel
from in_process import running_server
from otlp_receiver import http_receiver

from headrace.telemetry.otel import recorder
from headrace.telemetry.otel.encoded import sender

PARTS, PART = 512, b"10000\r\n" + b"x" * 65536 + b"\r\n"


def test_a_reply_without_an_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def reply(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            try:
                for _ in range(PARTS):
                    connection.sendall(PART)
                    sent.append(len(PART))
                connection.sendall(b"0\r\n\r\n")
            except OSError:
                return  # the exporter has left

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=reply, args=(listening,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        exporter = recorder._exporter("TRACES", "trace_exporter", "OTLPSpanExporter")  # pyright: ignore[reportPrivateUsage]
        send = sender(exporter)
        assert send is not None and send(b"")
        thread.join()
    assert len(sent) < PARTS


def test_clients_do_not_choose_the_names_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        with running_server(FakeModel(), api_key=("bob",)) as server:
            strangers, http = server.http(), server.http(headers={"authorization": "Bearer bob"})
            for name in ("strangeone", "strangetwo"):
                assert strangers.post(f"/v1/{name}", json={}).status_code == 401
                assert http.post(f"/v1/{name}", json={}).status_code == 404
                assert http.post(f"/v1/responses/resp_{name}1/cancel", json={}).status_code == 404
            assert http.post("/v1/embeddings", json={}).status_code == 400
    points = received.metrics["gen_ai.server.request.duration"].histogram.data_points
    names = {
        one.value.string_value
        for point in points
        for one in point.attributes
        if one.key == "gen_ai.operation.name"
    }
    assert names == {"request", "embeddings"}
    assert all("strange" not in span.name for span in received.spans)
