"""The conformance suite of MCP (npm @modelcontextprotocol/conformance 0.1.13) against this package's server
with the suite's fixture tools, the endpoint of a whole server, and this package's client."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conformance_server import OURS
from fake import FakeModel
from in_process import running_server
from tool_servers import HERE

NODE = os.environ.get("TEST_NODE_MODULES")
SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"


ENDPOINT = {
    "server-initialize": 1,
    "ping": 1,
    "tools-list": 1,
    "tools-call-simple-text": 1,
    "tools-call-image": 1,
    "tools-call-error": 1,
    "dns-rebinding-protection": 2,
}
"""Of what /v1/mcp offers, with the number of checks: it has no resources, prompts or requests to clients."""
CLIENT = ("initialize", "tools_call", "sse-retry")
"""Others of the suite are about elicitation, which is refused, and OAuth, which there is not."""


def suite(*words: str, folder: Path) -> str:
    """What the suite says."""
    if NODE is None or shutil.which("node") is None or not (Path(NODE) / SUITE).exists():
        pytest.skip("needs Node, and a folder with the suite (npm) in TEST_NODE_MODULES")
    command = ["node", str(Path(NODE) / SUITE), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def passed(said: str) -> tuple[int, int]:
    """Checks that passed, and that did not."""
    found = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", said)
    assert found is not None, said[-2000:]
    assert found[1] == found[2], said[-3000:]
    return int(found[1]), int(found[3])


@pytest.mark.parametrize("scenario", ENDPOINT)
def test_the_endpoint_of_a_server(tmp_path: Path, scenario: str) -> None:
    with running_server(FakeModel()) as server:
        service = server.server.config.app.state.service  # type: ignore[union-attr]
        own = service.tools.own
        service.tools.own = lambda: [*own(), *OURS]
        said = suite("server", "--url", f"{server.url}/v1/mcp", "--scenario", scenario, folder=tmp_path)
    assert passed(said) == (ENDPOINT[scenario], 0)


@pytest.mark.parametrize("scenario", CLIENT)
def test_our_client(tmp_path: Path, scenario: str) -> None:
    command = f"{sys.executable} {HERE / 'conformance_client.py'}"
    said = suite("client", "--command", command, "--scenario", scenario, folder=tmp_path)
    count, failed = passed(said)
    assert count >= 1 and failed == 0


def test_the_suite_passes(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "conformance_server.py"), str(port)],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        said = suite("server", "--url", f"http://127.0.0.1:{port}/mcp", folder=tmp_path)
    finally:
        server.terminate()
        server.wait(20)
    found = re.search(r"Total: (\d+) passed, (\d+) failed", said)
    assert found is not None, said[-2000:]
    print(f"conformance: {found[0]}")
    # Which names a server goes by is looked at by the middleware of the whole server, see above.
    assert int(found[1]) >= 39 and "✗ dns-rebinding-protection: 1 passed, 1 failed" in said, said[-3000:]
    assert int(found[2]) == 1, said[-3000:]
