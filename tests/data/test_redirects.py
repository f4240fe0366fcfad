"""Datasets on web servers: redirects stay on the server of the settings, certificates are checked."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from data_servers import DataEngineMaker

from headrace.data.engine import SourceDown
from headrace.data.origin_proxy import OriginProxy

pytest.importorskip("duckdb", reason="needs headrace[data]")


class _Redirecting(http.server.BaseHTTPRequestHandler):
    """/to/ADDRESS leads to it; everything else is a small CSV file."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("authorization")))  # type: ignore[attr-defined]
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("location", self.path.removeprefix("/to/"))
            self.send_header("content-length", "0")
            self.end_headers()
            return
        body = b"a,b\n1,2\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Web(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Redirecting)


@pytest.fixture
def servers() -> Generator[tuple[_Web, _Web]]:
    made = _Web(), _Web()
    for one in made:
        threading.Thread(target=one.serve_forever, daemon=True).start()
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


def test_redirects_stay_on_the_server(
    servers: tuple[_Web, _Web], engine: DataEngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_WEB_TOKEN", "t0ken-of-the-web")
    here, elsewhere = (f"127.0.0.1:{one.server_port}" for one in servers)
    made = engine(
        {
            "same": f"http://{here}/to//x.csv",
            "other": {"from": f"http://{here}/to/http://{elsewhere}/x.csv", "secret": "env:TEST_WEB_TOKEN"},
            "renamed": f"http://{here}/to/http://localhost:{servers[0].server_port}/x.csv",
            "metadata": f"http://{here}/to/http://169.254.169.254/latest/x.csv",
        }
    )
    assert made.sql("SELECT * FROM same", format="json").body == b'[{"a":1,"b":2}]'
    for name, shown in (("other", elsewhere), ("renamed", "localhost"), ("metadata", "169.254.169.254")):
        with pytest.raises(SourceDown, match=f"'{name}' cannot be opened: it redirects to http://{shown}"):
            made.sql(f"SELECT * FROM {name}")
    assert servers[1].seen == []
    assert ("Bearer t0ken-of-the-web") in {sent for _, sent in servers[0].seen}


def test_the_proxy_lets_nothing_else_through(servers: tuple[_Web, _Web]) -> None:
    proxy = OriginProxy("http://127.0.0.1:1/", allow_private=False)
    host, _, port = proxy.address.partition(":")
    other = servers[1].server_port
    for line in (
        f"GET http://127.0.0.1:{other}/ HTTP/1.1",
        f"CONNECT 127.0.0.1:{other} HTTP/1.1",
        "CONNECT 127.0.0.1:1 HTTP/1.1",  # https, where the dataset is at http
        "POST http://127.0.0.1:1/ HTTP/1.1",
        "GET / HTTP/1.1",
    ):
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(f"{line}\r\nHost: x\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 403"), line
    assert len(proxy.refused) == 5 and servers[1].seen == []


def test_a_public_name_of_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    proxy = OriginProxy("http://files.example.com/", allow_private=False)
    host, _, port = proxy.address.partition(":")
    with socket.socket() as client:
        client.settimeout(20)
        client.connect((host, int(port)))
        client.sendall(b"GET http://files.example.com/ HTTP/1.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 403")
    assert "set allow_private" in proxy.refused[0]


def test_certificates_are_checked(engine: DataEngineMaker, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "pair.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = _Web()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = engine({"own": f"https://127.0.0.1:{server.server_port}/x.csv"})
    with pytest.raises(SourceDown):
        made.sql("SELECT * FROM own")
    assert server.seen == []
    server.shutdown()
    server.server_close()
