"""`headrace serve` in a process of its own, as people run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    def get(self, path: str) -> Any:
        """What a GET of JSON gives."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=20) as reply:
            return json.load(reply)


@contextmanager
def served(model: object, *flags: str) -> Iterator[Served]:
    """Start it, wait until requests are taken, and see that it ends."""
    command = [sys.executable, "-m", "headrace", "serve", str(model), "--port", "0", *flags]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found, "the server did not start"
            yield Served(process, int(found[1]))
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
