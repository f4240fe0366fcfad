"""HTTP messages that never end, trickle, flood or contradict themselves; clients that read nothing."""

from __future__ import annotations

import json
import logging
import socket
import time

import pytest
from fake import FakeEngine, FakeModel
from in_process import Running, raw

import headrace.api.http.bounded_protocol as protocol
import headrace.api.http.request_body
from headrace.errors import InvalidRequest

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
CLOSE = b"connection: close\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def get(path: bytes = b"/health", headers: bytes = CLOSE, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n"


def post(headers: bytes = CLOSE, body: bytes = BODY, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n".encode()
        + headers
        + b"\r\n"
        + body
    )


def sent_until_cut(server: Running, head: bytes, part: bytes, limit: int) -> tuple[bytes, int]:
    """Send `head`, then `part` again and again; the reply, and the bytes that were taken."""
    sent = 0
    reply = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head)
        try:
            while sent < limit:
                connection.sendall(part)
                sent += len(part)
        except OSError:
            pass
        try:
            while data := connection.recv(65536):
                reply += data
        except OSError:
            pass
    return reply, sent


@pytest.mark.parametrize(
    ("ahead", "part"),
    [(b"0\r\n", b"a:\r\n" * 4096), (b"1", b";a=b" * 4096), (b"", b"0" * 4096), (b"0\r\n", b"a" * 4096)],
)
def test_trailers_and_chunk_extensions_have_the_budget_of_headers(
    server: Running, ahead: bytes, part: bytes
) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CHUNKED + ahead
    _, sent = sent_until_cut(server, head, part, 64 * 2**20)
    assert sent < 32 * 2**20, "what the two sockets hold, not all of it"
    assert server.http().get("/health").status_code == 200


def test_a_message_with_trailers_is_taken_without_them(server: Running) -> None:
    chunks = b"%x;x=y\r\n%s\r\n0\r\nhost: evil.example\r\nauthorization: x\r\n\r\n" % (len(BODY), BODY)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode()
    assert b" 200 OK" in raw(server, head + CHUNKED + chunks)


def test_a_body_in_tiny_chunks_is_no_overhead(server: Running) -> None:
    body = BODY[:-1] + b',"user":"' + b"x" * 50_000 + b'"}'
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode() + CHUNKED
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert b" 200 OK" in raw(server, head + chunks + b"0\r\n\r\n")


def test_a_message_that_does_not_end_is_cut(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.1)
    reply = raw(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CHUNKED + b"0\r\na:\r\n")
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert reply.count(b"HTTP/1.1") == 1


def test_what_is_left_of_a_refused_body_is_read_for_a_moment(serve) -> None:
    server = serve(api_key="k")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(post(b"", b"x" * 100_000, length=200_000))
        assert b" 401 " in connection.recv(65536)
        connection.sendall(b"x" * 100_000 + get(headers=CLOSE))
        assert b" 200 OK" in connection.recv(65536), "the connection can be used again"
    _, sent = sent_until_cut(server, post(b"", b"", length=30 * 2**20), b"x" * 65536, 30 * 2**20)
    assert sent < 30 * 2**20, "without a key no body is read"


def test_a_body_below_the_least_rate(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(headrace.api.http.request_body, "PATIENCE_S", 0.1)
    head, _, body = raw(server, post(b"", b"{", length=30 * 2**20)).partition(b"\r\n\r\n")
    assert b" 408 " in head
    assert json.loads(body)["error"]["code"] == "request_timeout"


def test_declared_bodies_take_no_memory(server: Running) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for connection in idle:
        connection.sendall(post(b"", b"", length=32 * 2**20))
    assert server.http().post(CHAT, content=BODY).status_code == 200
    for connection in idle:
        connection.close()


def test_a_client_that_ends_its_side_gets_its_reply(serve) -> None:
    server = serve(FakeModel(engine=FakeEngine(pause_s=0.02)))
    for data in (get(headers=b""), post(b"")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            reply = b""
            while part := connection.recv(65536):
                reply += part
        assert b"HTTP/1.1 200 OK" in reply


def test_a_client_that_leaves_is_told_from_one_that_ends_its_side(serve) -> None:
    server = serve()
    server.model.engine.go.clear()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(post(b""))
        time.sleep(0.2)
    assert server.model.engine.cancelled_event.wait(10)
    server.model.engine.go.set()


def test_head_is_get_without_its_body(server: Running) -> None:
    for path in ("/health", "/v1/models", "/metrics", "/nothing"):
        full, empty = server.http().get(path), server.http().head(path)
        assert empty.status_code == full.status_code
        assert empty.headers["content-type"] == full.headers["content-type"]
        if path != "/metrics":  # it counts both
            assert empty.headers["content-length"] == full.headers["content-length"]
        assert not empty.content
    two = raw(server, get(headers=b"", method=b"HEAD") + get())
    assert two.count(b"HTTP/1.1 200 OK") == 2 and two.endswith(b"}")


@pytest.mark.parametrize(
    "headers", [b"host: localhost\r\n", b"origin: http://localhost\r\n" * 2, b"x-api-key: a\r\n" * 2]
)
def test_headers_that_decide_are_there_once(server: Running, headers: bytes) -> None:
    reply = raw(server, get(headers=CLOSE + headers))
    assert b" 400 " in reply and b"duplicate_header" in reply


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        b"content-length: 3\r\ncontent-length: 4\r\n",
        b"x\0y: 1\r\n",
        b"x y: 1\r\n",
        b"x : 1\r\n",
        b"x: a\0b\r\n",
        b"x: a\r\n b\r\n",
    ],
)
def test_messages_that_could_be_read_in_two_ways(server: Running, headers: bytes) -> None:
    reply = raw(server, get(headers=headers, method=b"POST") + b"0\r\n\r\n")
    assert b"HTTP/1.1 400 " in reply and b"invalid_http" in reply and reply.count(b"HTTP/1.1 ") == 1


def test_compressed_bodies_and_unknown_codings(server: Running) -> None:
    for coding in (b"gzip", b"deflate", b"br"):
        reply = raw(server, post(CLOSE + b"content-encoding: " + coding + b"\r\n"))
        assert b" 415 " in reply and b"unsupported_encoding" in reply
    assert b" 200 " in raw(server, post(CLOSE + b"content-encoding: identity\r\n"))
    for coding in (b"gzip, chunked", b"identity", b"gzip"):
        reply = raw(server, get(headers=b"transfer-encoding: " + coding + b"\r\n"))
        assert b" 501 " in reply and b"unsupported_transfer_encoding" in reply


@pytest.mark.parametrize(
    "path",
    [
        b"/\xff\xfe",
        b"/v1/models/\xc3",
        b"/v1/models/%ff",
        b"/v1/files/%ED%A0%80",
        b"/%00",
        b"/health?\xff",
        b"*",
    ],
)
def test_paths_that_are_no_text(server: Running, caplog, path: bytes) -> None:
    with caplog.at_level(logging.ERROR):
        status = int(raw(server, get(path)).split(b" ", 2)[1])
    assert status in (400, 404)
    assert not caplog.records


def test_the_wait_for_100_continue(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(post(CLOSE + b"expect: 100-continue\r\n", b"", length=len(BODY)))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert b"HTTP/1.1 200 OK" in connection.recv(65536)


def test_pipelined_requests(server: Running) -> None:
    assert raw(server, get(headers=b"") * 30 + get()).count(b"HTTP/1.1 200 OK") == 31
    reply, sent = sent_until_cut(server, b"", get(b"/v1/models", b"") * 1000, 64 * 2**20)
    assert sent < 32 * 2**20
    assert reply.count(b"HTTP/1.1 200") < 2000
    assert server.http().get("/health").status_code == 200


def test_another_protocol_is_not_spoken(server: Running) -> None:
    reply = raw(server, get(headers=b"connection: upgrade\r\nupgrade: h2c\r\n") + get())
    assert reply.count(b"HTTP/1.1 200 OK") == 1


def test_a_reply_that_is_not_read_is_cut(serve, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "STALL_S", 0.2)
    server = serve()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        try:
            for _ in range(3000):
                connection.sendall(get(b"/v1/models", b""))
                time.sleep(0)
        except OSError:
            pass
        until = time.monotonic() + 20
        while server.server.server_state.connections and time.monotonic() < until:
            time.sleep(0.02)
        assert not server.server.server_state.connections


def test_idle_connections_give_way_to_new_ones(server: Running, monkeypatch, request) -> None:
    monkeypatch.setattr(protocol, "max_connections", lambda: 20)
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(60)]
    for connection in idle:
        request.addfinalizer(connection.close)
    for _ in range(5):
        assert server.http().get("/health").status_code == 200
    assert len(server.server.server_state.connections) <= 21


def test_empty_lines_do_not_keep_a_connection(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_DEADLINE_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(get(headers=b"") + b"\r\n")
        assert b" 200 OK" in connection.recv(65536)
        connection.sendall(b"\r\n")
        assert connection.recv(65536) == b""


def test_duplicate_keys_are_named(server: Running) -> None:
    body = BODY[:-1] + b',"max_tokens":5}'
    reply = server.http().post(CHAT, content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "duplicate_key"
    assert reply.json()["error"]["param"] == "max_tokens"
    assert isinstance(protocol.HeadersTooLarge("x"), InvalidRequest)


def test_metrics_are_rendered_for_a_share_of_the_time(serve, monkeypatch) -> None:
    import headrace.api.admin.metrics as metrics

    monkeypatch.setattr(metrics, "LOOP_SHARE", 1e-6)
    calls = []
    expose = metrics.expose
    monkeypatch.setattr(metrics, "expose", lambda *args, **more: calls.append(1) or expose(*args, **more))
    http = serve().http()
    texts = {http.get("/metrics").text for _ in range(5)}
    assert len(calls) == 1 and len(texts) == 1
    assert http.get("/metrics", headers={"accept": "application/openmetrics-text"}).text not in texts
