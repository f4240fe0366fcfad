"""Servers of tools behind OAuth: login, tokens that are kept encrypted, refreshed and sent to nobody else."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from tool_servers import HERE

pytest.importorskip("cryptography", reason="needs headrace[tools]")

from headrace.config.mcp import McpSettings, read_mcp
from headrace.errors import UsageError
from headrace.providers.token_vault import TokenVault
from headrace.storage.database import Database
from headrace.tools.mcp.gateway import McpGateway
from headrace.tools.mcp.http import _BoundedTransport


class Closed:
    """A server behind OAuth, and gateways to it that share a store."""

    def __init__(self, folder: Path, seconds: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url, self.log, self.folder = f"http://127.0.0.1:{self.port}/mcp", folder / "log", folder
        words = [str(HERE / "oauth_server.py"), str(self.port), str(self.log), str(seconds)]
        self.process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                break
            time.sleep(0.05)
        self.store = folder / "store.sqlite3"
        self.gateways: list[McpGateway] = []

    def gateway(self, url: str | None = None) -> McpGateway:
        """Another process's, as it were."""
        servers = read_mcp({"shop": {"url": url or self.url, "oauth": {}, "allow": "*", "timeout": 20}})
        tokens = TokenVault(Database(self.store))
        found = McpGateway(servers, self.folder / "headrace.lock", tokens=tokens)
        self.gateways.append(found)
        return found

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def close(self) -> None:
        for one in self.gateways:
            one.close()
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Closed]]:
    monkeypatch.setenv("HEADRACE_MASTER_KEY", "a key of sixteen characters")
    made: list[Closed] = []

    def make(seconds: int = 3600) -> Closed:
        made.append(Closed(tmp_path, seconds))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def browse(url: str) -> None:
    """What a browser does where the person is logged in already."""
    async with httpx.AsyncClient() as client:
        reply = await client.get(url)
        await client.get(reply.headers["location"])


def test_login_once_and_everybody_may_call(closed: Callable[..., Closed]) -> None:
    server = closed()
    first = server.gateway()
    assert "headrace mcp login shop" in (first.checked("shop").error or "")
    assert server.said() == []  # nobody was asked, and no client registered
    assert first.log_in("shop", browse) == 1
    first.approve("shop", first.difference("shop")[0])
    assert first.call("shop__add", {"a": 1, "b": 2}).text == "3"
    assert server.gateway().call("shop__add", {"a": 2, "b": 2}).text == "4"  # after a restart
    assert [line.split()[0] for line in server.said()].count("authorized") == 1
    secrets = re.findall(r"(?:access|refresh)-\S+", "\n".join(server.said()))
    assert len(secrets) == 2
    for path in (*server.folder.glob("store*"), server.folder / "headrace.lock"):
        assert not any(one.encode() in path.read_bytes() for one in secrets), path


def test_tokens_are_refreshed_after_a_restart(closed: Callable[..., Closed]) -> None:
    server = closed(2)
    first = server.gateway()
    first.log_in("shop", browse)
    first.approve("shop", first.difference("shop")[0])
    time.sleep(2.2)
    assert server.gateway().call("shop__add", {"a": 1, "b": 2}).text == "3"
    done = [line.split()[0] for line in server.said()]
    assert done.count("authorized") == 1 and "refresh" in done


def test_tokens_are_for_one_address(closed: Callable[..., Closed]) -> None:
    server = closed()
    server.gateway().log_in("shop", browse)
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(20)
        gateway = server.gateway(f"http://127.0.0.1:{other.getsockname()[1]}/mcp")

        def listen() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = other.accept()
                    with connection:
                        seen.append(connection.recv(65536))
                        connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

        threading.Thread(target=listen, daemon=True).start()
        assert gateway.checked("shop").error
    assert seen and not any(b"Bearer" in one for one in seen)


def test_the_command_logs_in_and_out(closed: Callable[..., Closed]) -> None:
    server = closed()
    (server.folder / "headrace.toml").write_text(
        f'[mcp.shop]\nurl = "{server.url}"\nallow = ["*"]\noauth = {{}}\n'
    )
    variables = os.environ | {"HEADRACE_STORE": str(server.store)}
    command = [str(Path(sys.executable).with_name("headrace")), "mcp"]
    process = subprocess.Popen(
        [*command, "login", "shop", "--json"],
        cwd=server.folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        url = next(line.strip() for line in process.stderr if line.startswith("http"))
        reply = httpx.get(url)
        wrong = reply.headers["location"].replace("state=", "state=wrong")
        assert httpx.get(wrong.replace("/callback", "/elsewhere")).status_code == 404
        assert httpx.get(reply.headers["location"]).status_code == 200
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == 0 and out.split() == ["{", '"name":', '"shop",', '"tools":', "1", "}"]

    def run(*words: str) -> Any:
        return subprocess.run(
            [*command, *words], cwd=server.folder, env=variables, capture_output=True, text=True, timeout=60
        )

    assert "forgot the tokens of shop" in run("logout", "shop").stdout
    listed = run("list", "shop")
    assert "headrace mcp login shop" in listed.stdout + listed.stderr


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ({"grant": "client_credentials"}, "needs client_id"),
        ({"grant": "client_credentials", "client_id": "a", "client_secret": "env:A"}, "needs issuer"),
        ({"client_secret": "env:A"}, "client_secret needs client_id"),
        ({"issuer": "https://a.example"}, "has no effect"),
        ({"client_metadata_url": "http://a.example/x"}, "no https address"),
        ({"prot": 1}, "unknown 'prot'"),
    ],
)
def test_wrong_settings(oauth: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_mcp({"shop": {"url": "https://shop.example/mcp", "oauth": oauth}})


def test_oauth_of_a_public_server_stays_in_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may name any address as its authorization server."""
    transport = _BoundedTransport("https://shop.example/mcp")
    for url, said in (
        ("http://login.example/token", "not at https"),
        ("https://127.0.0.1:1/token", "private network"),
        ("https://169.254.169.254/latest", "private network"),
        ("https://localhost/token", "private network"),
    ):
        with pytest.raises(httpx2.ConnectError, match=said):
            asyncio.run(transport.handle_async_request(httpx2.Request("POST", url)))


def test_settings_of_programs_have_no_oauth() -> None:
    with pytest.raises(UsageError, match="needs url"):
        read_mcp({"shop": {"command": ["x"], "oauth": {}}})
    assert McpSettings(url="https://a.example/mcp").oauth is None
