"""Run commands in a separate process, isolated from the user's settings and caches."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invocation import Headrace, Outcome

from headrace.cli.main import main


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Restore SIGINT for child processes: a shell makes its background processes ignore it, and this is
    inherited.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run `headrace ARGUMENTS` in this process with empty stdin; faster than `headrace`."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert isinstance(stop.value.code, int)
        return Outcome(stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A clean home directory, and no HEADRACE_* variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "XDG_"))}
    return kept | {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}


@pytest.fixture
def headrace(environment: dict[str, str], tmp_path: Path) -> Headrace:
    """Run `headrace ARGUMENTS` to its end."""

    def call(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            input=stdin,
            capture_output=True,
            env=environment | variables,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )

    return call
