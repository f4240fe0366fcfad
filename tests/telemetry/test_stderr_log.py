"""Lines of the log that clients can provoke are limited, and those left out are counted."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from headrace.config.stderr_log import LINES, WINDOW_S, BoundedHandler
from reliability.served import served
from tiny import tiny_model


class Clock:
    """A clock that is set by hand, and what is to be done later."""

    now_s = 0.0

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now_s

    def pass_window(self) -> None:
        self.now_s += WINDOW_S
        for _, action in self.later:
            action()
        self.later.clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(clock: Clock, stream: io.StringIO) -> logging.Logger:
    log = logging.Logger("test")
    log.addHandler(BoundedHandler(stream, clock=clock, later=lambda *what: clock.later.append(what)))
    return log


def write(log: logging.Logger, count: int) -> None:
    for index in range(count):
        log.warning("a line, %d", index)


def test_lines_of_one_place_are_limited(log: logging.Logger, clock: Clock, stream: io.StringIO) -> None:
    write(log, 1000)
    log.error("another place")
    lines = stream.getvalue().splitlines()
    assert lines == [*(f"a line, {index}" for index in range(LINES)), "another place"]
    assert len(clock.later) == 1 and clock.later[0][0] == WINDOW_S
    clock.pass_window()
    assert (
        stream.getvalue().splitlines()[-1]
        == "990 more such lines within 10 s were left out, the first: a line, 10"
    )
    write(log, 1)
    assert stream.getvalue().endswith("a line, 0\n")


def test_few_lines_are_all_written(log: logging.Logger, clock: Clock, stream: io.StringIO) -> None:
    for _ in range(5):
        write(log, LINES)
        clock.pass_window()
    assert len(stream.getvalue().splitlines()) == 5 * LINES
    assert "left out" not in stream.getvalue()


def test_what_is_no_http_writes_few_lines(tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        served(tiny_model(tmp_path)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        for _ in range(100):
            reply = client.get("/health", headers={"a": "\x01"})
            assert reply.status_code == 400
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= LINES + 1, lines


def test_the_count_comes_from_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import logging, time; from headrace.config import stderr_log as log; log.WINDOW_S = 0.2\n"
        "log.log_to_stderr()\n"
        "for _ in range(50): logging.warning('x')\n"
        "time.sleep(0.6)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["WARNING x"] * LINES + [
        f"WARNING {50 - LINES} more such lines within 0.2 s were left out, the first: x"
    ]
