"""The conformance suite of MCP (npm @modelcontextprotocol/conformance 0.1.6) against this package's server
with the suite's fixture tools."""

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
from tool_servers import HERE

NODE = os.environ.get("TEST_NODE_MODULES")
SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"


def test_the_suite_passes(tmp_path: Path) -> None:
    if NODE is None or shutil.which("node") is None or not (Path(NODE) / SUITE).exists():
        pytest.skip("needs Node, and a folder with the suite (npm) in TEST_NODE_MODULES")
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
        command = ["node", str(Path(NODE) / SUITE), "server", "--url", f"http://127.0.0.1:{port}/mcp"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300).stdout
    finally:
        server.terminate()
        server.wait(20)
    found = re.search(r"Total: (\d+) passed, (\d+) failed", said)
    assert found is not None, said[-2000:]
    print(f"conformance: {found[0]}")
    assert int(found[1]) >= 30 and int(found[2]) == 0, said[-3000:]
