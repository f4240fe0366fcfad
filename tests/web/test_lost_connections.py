"""The page when its server goes away: in the middle of an answer, and while figures are followed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.xdist_group("browser")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent / "api")}
    with subprocess.Popen([sys.executable, HERE / "scripted_server.py", str(port)], env=environ) as process:
        try:
            with httpx.Client(trust_env=False) as http:
                while not answers(http, port):
                    assert process.poll() is None
                    time.sleep(0.05)
            yield process
        finally:
            process.kill()


def answers(http: httpx.Client, port: int) -> bool:
    try:
        return http.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_server_that_is_killed_and_comes_back(visit) -> None:
    port = free_port()
    site = visit(f"http://127.0.0.1:{port}")
    with serving(port) as process:
        page = site.open()
        live = visit(site.url)
        figures = live.open("live")
        figures.get_by_role("status").get_by_text("Live", exact=True).wait_for()
        box = page.get_by_label("Message", exact=True)
        box.fill("Tell me something long.")
        box.press("Enter")
        page.locator("article.assistant .prose p").first.wait_for()
        process.send_signal(signal.SIGKILL)
        process.wait()
        page.get_by_role("alert").get_by_text("was lost before the answer was complete").wait_for()
        kept = page.locator("article.assistant .prose").inner_text()
        assert kept
        figures.get_by_role("status").get_by_text("Connecting again").wait_for()
    box.fill("Anybody there?")
    box.press("Enter")
    page.get_by_text("The server does not answer. The page goes on").wait_for()
    with serving(port):
        page.get_by_text("The server does not answer. The page goes on").wait_for(state="detached")
        figures.get_by_role("status").get_by_text("Live", exact=True).wait_for()
        page.get_by_role("button", name="Try again").click()
        page.get_by_role("button", name="Stop").wait_for()
        page.get_by_role("button", name="Stop").click()
        assert kept in page.locator("article.assistant .prose").first.inner_text()
