"""The door: keys, Host and Origin, headers that are too large or too slow, slow readers."""

from __future__ import annotations

import json
import socket
import time

import openai
import pytest
from fake import FakeEngine, FakeModel
from in_process import Running, raw

import headrace.api.http.bounded_protocol
import headrace.inference.engine_run
from headrace.api.http.middleware import exposed
from headrace.config.sources import load_settings

MESSAGES = [{"role": "user", "content": "hello"}]


def test_every_route_but_health_needs_the_key(serve) -> None:
    server = serve(api_key="secret,other")
    http = server.http()
    for path in ("/v1/models", "/v1/models/fake/model", "/nothing", "/openapi.json"):
        assert http.get(path).status_code == 401, path
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert http.post(path, json={}).status_code == 401, path
    assert http.get("/health").status_code == 200
    assert http.get("/ready").status_code == 200
    for headers in ({"authorization": "Bearer other"}, {"x-api-key": "secret"}):
        assert server.http(headers=headers).get("/v1/models").status_code == 200
    for wrong in ("Bearer wrong", "Bearer", "Basic secret", "secret", "Bearer secret2"):
        reply = server.http(headers={"authorization": wrong}).get("/v1/models")
        assert reply.status_code == 401, wrong
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["x-request-id"]


def test_a_key_beyond_ascii(serve) -> None:
    key = "schlüssel"
    http = serve(api_key=key).http()
    assert http.get("/v1/models", headers={"x-api-key": key.encode()}).status_code == 200
    assert http.get("/v1/models", headers={"x-api-key": "schl"}).status_code == 401


def test_the_official_client_raises_its_own_class(serve) -> None:
    server = serve(api_key="secret")
    with pytest.raises(openai.AuthenticationError):
        server.openai(api_key="wrong").models.list()
    assert [model.id for model in server.openai(api_key="secret").models.list()] == ["fake/model"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "", "127.0.0.1.evil.example"])
def test_foreign_hosts_are_refused_on_loopback(server: Running, host: str) -> None:
    reply = server.http(headers={"host": host}).get("/health")
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "forbidden_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:80"])
def test_own_hosts_are_accepted(server: Running, host: str) -> None:
    assert server.http(headers={"host": host}).get("/health").status_code == 200


def test_pages_of_others_are_refused(server: Running) -> None:
    get = server.http().get
    assert get("/health", headers={"origin": "https://evil.example"}).status_code == 403
    assert get("/health", headers={"origin": "null"}).status_code == 403
    assert get("/health", headers={"origin": "http://["}).status_code == 403
    assert get("/health", headers={"origin": "http://localhost:3000"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("::", None, True), ("127.0.0.1", None, False)],
)
def test_serving_everyone_without_a_key_is_warned_of(host: str, key: str | None, warned: bool) -> None:
    settings = load_settings({"host": host, "api_key": key}, environ={}, folders=[])
    assert bool(exposed(settings)) == warned


def test_allowed_hosts(serve) -> None:
    server = serve(allowed_hosts="models.example")
    assert server.http(headers={"host": "models.example"}).get("/health").status_code == 200
    assert server.http(headers={"host": "evil.example"}).get("/health").status_code == 403


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 70_000,
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 70_000,
    ],
)
def test_headers_over_64_kb(server: Running, data: bytes) -> None:
    head, _, body = raw(server, data).partition(b"\r\n\r\n")
    assert b" 431 " in head
    assert b"x-request-id: req_" in head
    assert json.loads(body)["error"]["code"] == "headers_too_large"


def test_a_large_body_after_small_headers_is_fine(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 3000}], "user": "u" * 300_000, "max_tokens": 1}
    assert server.http().post("/v1/chat/completions", json=body).status_code == 200


def test_headers_that_trickle(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.bounded_protocol, "HEADER_DEADLINE_S", 0.05)
    head, _, body = raw(server, b"GET /health HTTP/1.1\r\nhost: loc").partition(b"\r\n\r\n")
    assert b" 408 " in head
    assert json.loads(body)["error"]["code"] == "request_timeout"


def test_what_is_not_http(server: Running) -> None:
    head, _, body = raw(server, b"\x16\x03\x01 hello\r\n\r\n").partition(b"\r\n\r\n")
    assert b" 400 " in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


def stalled_reader(server: Running) -> socket.socket:
    """A client that asks for a stream and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"messages": MESSAGES, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_a_reader_that_stalls_is_cut(serve, monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.bounded_protocol, "STALL_S", 0.2)
    monkeypatch.setattr(headrace.inference.engine_run, "LIMIT_BYTES", 2**30)
    server = serve(FakeModel(engine=FakeEngine("x" * 20_000, pause_s=0.0005)))
    with stalled_reader(server):
        assert server.model.engine.cancelled_event.wait(20)


def test_a_reader_that_is_behind_holds_its_request(serve) -> None:
    server = serve(FakeModel(engine=FakeEngine("x" * 20_000)))
    with stalled_reader(server):
        until = time.monotonic() + 20
        while not server.model.engine.held_requests and time.monotonic() < until:
            time.sleep(0.01)
        assert server.model.engine.held_requests
        assert not server.model.engine.cancelled
        assert server.http().get("/health").status_code == 200


def test_what_waits_for_a_reader_is_bounded(serve, monkeypatch) -> None:
    """Also where the engine does not hold the request."""
    monkeypatch.setattr(headrace.inference.engine_run, "PAUSE_BYTES", 2**30)
    server = serve(FakeModel(engine=FakeEngine("x" * 20_000)))
    with stalled_reader(server):
        assert server.model.engine.cancelled_event.wait(20)
    # Others are served meanwhile and afterwards.
    assert server.http().get("/health").status_code == 200
