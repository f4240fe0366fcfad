"""HTTP messages without end, floods of them, and messages that can be read in two ways. None has a key."""

from __future__ import annotations

import socket
import time

from target import BODY, CHAT, MIB, Attack, Target, read_all, request

CHUNKED = request(headers=b"transfer-encoding: chunked\r\n")
SENT_MIB = 16  # what the buffers of two sockets may take after the server has stopped reading


def _endless(head: bytes, part: bytes):
    def run(target: Target) -> str:
        sent = sum(target.at_once(4, lambda: target.flood(head, part)))
        assert sent < 4 * SENT_MIB * MIB, f"{sent:,} bytes were taken"
        return f"cut after {sent / 4 / MIB:.1f} MiB each"

    return run


def _trickled(target: Target) -> str:
    for _ in range(200):
        target.connect().sendall(b"GET /health HTTP/1.1\r\nhost: loc")
    target.wait()
    return "200 partial heads held"


def _unending(target: Target) -> str:
    sent = sum(target.at_once(4, lambda: target.flood(CHUNKED + b"0\r\n", b"a:\r\n", paced_s=0.01)))
    return f"{sent:,} bytes trickled"


def _connections(target: Target) -> str:
    count = 0
    until_s = time.monotonic() + target.attack_s
    while count < 600 and time.monotonic() < until_s:
        target.connect()
        count += 1
    target.wait()
    return f"{count} idle connections"


def _resets(target: Target) -> str:
    until_s, count = time.monotonic() + target.attack_s, 0
    while time.monotonic() < until_s:
        connection = target.connect()
        connection.sendall(request(CHAT, method=b"POST", body=BODY[:10], length=len(BODY)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        count += 1
    return f"{count} connections reset"


def _ended(target: Target) -> str:
    """A client that sends no more still gets its reply."""
    connection = target.connect()
    connection.sendall(request(headers=b""))
    connection.shutdown(socket.SHUT_WR)
    assert b" 200 OK" in read_all(connection)
    return "replied after FIN"


CONTRADICTIONS = {
    "two lengths": (400, request(headers=b"content-length: 1\r\ncontent-length: 2\r\n")),
    "length and chunks": (400, request(headers=b"content-length: 1\r\ntransfer-encoding: chunked\r\n")),
    "chunks and length": (400, request(headers=b"transfer-encoding: chunked\r\ncontent-length: 1\r\n")),
    "NUL in a name": (400, request(headers=b"x\0y: 1\r\n")),
    "space after a name": (400, request(headers=b"x : 1\r\n")),
    "folded header": (400, request(headers=b"x: 1\r\n y\r\n")),
    "two hosts": (400, request(headers=b"connection: close\r\nhost: evil.example\r\n")),
    "two origins": (400, request(headers=b"connection: close\r\n" + b"origin: http://localhost\r\n" * 2)),
    "foreign host": (403, request().replace(b"localhost", b"evil.example")),
    "path that is no text": (400, request(b"/\xff\xfe")),
    "escaped path that is no text": (401, request(b"/v1/models/%ff")),
    "coding in a coding": (501, request(headers=b"transfer-encoding: gzip, chunked\r\n")),
    "HEAD": (200, request(method=b"HEAD")),
    "another protocol": (200, request(headers=b"connection: upgrade\r\nupgrade: h2c\r\n")),
}


def _contradictions(target: Target) -> str:
    for name, (status, data) in CONTRADICTIONS.items():
        assert target.status(data) == status, name
    return f"{len(CONTRADICTIONS)} kinds refused"


ATTACKS = [
    Attack("endless trailers", _endless(CHUNKED + b"0\r\n", b"a:\r\n" * 4096)),
    Attack("endless chunk extensions", _endless(CHUNKED + b"1", b";a=b" * 4096)),
    Attack("endless header", _endless(b"GET /health HTTP/1.1\r\nx: ", b"y" * 16384)),
    Attack("endless empty lines", _endless(b"", b"\r\n" * 8192)),
    Attack("pipelined without reading", _endless(b"", request(headers=b"") * 400)),
    Attack("headers that trickle", _trickled),
    Attack("a message that trickles after its reply", _unending),
    Attack("many idle connections", _connections),
    Attack("reset in the middle of a body", _resets),
    Attack("end of input after the request", _ended),
    Attack("messages with two readings", _contradictions),
]
