"""Ctrl-C while `headrace serve` starts: exit code 130 and no traceback, whatever is imported just then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED"]:
            sys.meta_path.remove(self)
            os.killpg(0, signal.SIGINT)

if os.environ.get("INTERRUPTED") and "headrace.workers" not in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, Interrupter())
"""
MOMENTS = [
    "headrace.cli.main",
    "typer",
    "headrace.cli.serve",
    "headrace.config.settings",
    "headrace.cli.serve_settings",  # a worker is starting
    "numpy",
    "uvicorn",
    "headrace.api.app",
    "uvicorn.lifespan.on",  # while the server starts
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_start_ends_quietly(tmp_path: Path, moment: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    environment = {
        **os.environ,
        "INTERRUPTED": moment,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    result = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--port", "0"],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,  # the signal goes to its group, as from a terminal
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in result.stderr and "Interrupt" not in result.stderr, result.stderr
    assert result.returncode == 130
