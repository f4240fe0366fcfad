"""The command as a process of its own, away from the user's settings and caches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Headrace = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A clean home, and nothing of HEADRACE_*."""
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
