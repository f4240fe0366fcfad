"""A server of Headrace for a suite: its own folders, a free port, models under the names of a suite."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_S = 60.0


@contextmanager
def serving(folder: Path, models: Mapping[str, Sequence[str]], more: str = "") -> Iterator[str]:
    """Serve bundled models under aliases; the address, once requests are answered. `more` stands in
    headrace.toml besides."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = [
        f"[models.{name}]\npath = {json.dumps(name)}\naliases = {json.dumps(sorted(aliases))}\n"
        for name, aliases in models.items()
    ]
    (folder / "headrace.toml").write_text("\n".join([*tables, more]))
    port = free_port()
    command = [Path(sys.executable).parent / "headrace", "serve", "--port", str(port)]
    environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, server)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            raise SystemExit(f"headrace serve ended with {server.returncode}: see server.log")
        try:
            with urllib.request.urlopen(f"{address}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"headrace serve was not ready within {START_S:g} s")
