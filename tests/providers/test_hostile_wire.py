"""What a hostile provider may do below and around its events: chunks, trailers, certificates, odd orders."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fake_provider import HELLO, Exchange, Gateway, delta, events, say, usage

ASK: list[Any] = [{"role": "user", "content": "hi"}]
ONE: dict[str, Any] = {"max_attempts": 1}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = events(*HELLO, usage(), done=False)


def post(server: Any, **more: Any) -> Any:
    return server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK, **more})


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


@pytest.mark.parametrize(
    "sent",
    [
        b"ffffffffffffffffff\r\n" + WHOLE,  # a chunk of 2**72 bytes that never come
        b"-5\r\n" + WHOLE,
        b"zz\r\n" + WHOLE,
        chunk(WHOLE[:40], b";" + b"x" * 100_000),
        chunk(WHOLE[:40]) + b"5\r\nab",
    ],
)
def test_broken_chunks(gateway: Callable[..., Gateway], sent: bytes) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.send(HEAD + sent)

    server, provider = gateway(reply, model=ONE)
    found = post(server)
    assert found.status_code == 502 and "'far'" in found.json()["error"]["message"], found.text
    assert len(provider.exchanges) == 1


@pytest.mark.parametrize("trailer", [b"x-filler: " + b"y" * 1000 + b"\r\n", b"content-length: 5\r\n"])
def test_trailers_without_an_end(gateway: Callable[..., Gateway], trailer: bytes) -> None:
    """The answer before them is given, or refused where they come with it. They are not waited for, and the
    connection serves no other request."""

    async def reply(exchange: Exchange) -> None:
        await exchange.send(HEAD + chunk(events(*HELLO, usage())) + b"0\r\n")
        for _ in range(2000):
            await exchange.send(trailer)

    server, provider = gateway(reply, say(*HELLO, usage()), model=ONE)
    first, second = post(server), post(server)
    assert "Hello" in first.text or (first.status_code == 502 and "'far'" in first.text), first.text
    assert second.json()["choices"][0]["message"]["content"] == "Hello"
    assert len(provider.exchanges) == 2


def test_control_characters_of_an_answer_are_its_text(gateway: Callable[..., Gateway]) -> None:
    text = "a\0b\x1b[2J\u2028c\r\n\r\ndata: [DONE]\n\n"
    server, _ = gateway(say(delta(content=text), delta(finish="stop"), usage()))
    assert post(server).json()["choices"][0]["message"]["content"] == text
    streamed = post(server, stream=True).text
    assert streamed.count("[DONE]") == 2 and streamed.count('"finish_reason":"stop"') == 1


def test_a_second_finish_reason_ends_nothing_twice(gateway: Callable[..., Gateway]) -> None:
    ends = delta(finish="stop"), delta(finish="length"), delta(finish="stop")
    server, _ = gateway(say(*HELLO[:-1], *ends, usage()), model=ONE)
    streamed = post(server, stream=True).text
    assert "'far' sent more of a choice after its finish reason" in streamed
    assert streamed.count('"finish_reason":"') == 0 and streamed.count('"error":{') == 1


def test_of_counts_that_change_the_last_are_booked_once(gateway: Callable[..., Gateway]) -> None:
    counts = usage(5, 1), usage(5, 3), usage(5, 2)
    server, _ = gateway(
        say(HELLO[0], counts[0], HELLO[1], counts[1], *HELLO[2:], counts[2]),
        prices={"work/far-1": {"input": 1_000_000, "output": 1_000_000}},
    )
    reply = post(server)
    assert reply.json()["usage"]["completion_tokens"] == 2
    assert float(reply.headers["x-headrace-cost-usd"]) == 7.0


@contextmanager
def self_signed(folder: Path) -> Iterator[tuple[int, list[str]]]:
    """A server whose certificate nobody has signed: its port, and the requests that it has got."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signed = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (folder / "pem").write_bytes(secret + signed)
    got: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, got
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_a_certificate_that_nobody_signed(gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    with self_signed(tmp_path) as (port, got):
        server, _ = gateway(provider={"base_url": f"https://localhost:{port}/v1"}, model=ONE)
        found = post(server)
        message = found.json()["error"]["message"]
        assert found.status_code >= 500 and "'far'" in message and "certificate" in message, found.text
    assert not got
