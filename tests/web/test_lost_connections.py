"""The page when its server goes away: in the middle of an answer, and while figures are followed."""

from __future__ import annotations

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

pytestmark = pytest.mark.xdist_group("browser")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def serving(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real server in a process of its own."""
    command = [sys.executable, "-m", "headrace", "serve", "novelette", "--port", str(port), "--threads", "1"]
    command += ["--store", str(folder / "store.sqlite3")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(trust_env=False) as http:
                for _ in range(600):
                    try:
                        if http.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                            break
                    except httpx.HTTPError:
                        pass
                    assert process.poll() is None
                    time.sleep(0.05)
            yield process
        finally:
            process.kill()


def test_a_server_that_is_killed_and_comes_back(visit, tmp_path: Path) -> None:
    port = free_port()
    site = visit(f"http://127.0.0.1:{port}")
    with serving(port, tmp_path) as process:
        page = site.open()
        live = visit(site.url)
        figures = live.open("live")
        figures.get_by_role("status").get_by_text("Live", exact=True).wait_for()
        page.get_by_role("button", name="Options").click()
        page.get_by_label("Max tokens").fill("900")
        box = page.get_by_label("Message", exact=True)
        box.fill("Tell me a long story about a mill.")
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
    with serving(port, tmp_path):
        page.get_by_text("The server does not answer. The page goes on").wait_for(state="detached")
        figures.get_by_role("status").get_by_text("Live", exact=True).wait_for()
        page.get_by_role("button", name="Try again").click()
        page.get_by_role("button", name="Stop").wait_for()
        page.get_by_role("button", name="Stop").click()
        assert kept in page.locator("article.assistant .prose").first.inner_text()
