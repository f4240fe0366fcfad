"""Instruction sets by name; `make test` runs the tests marked `isas` with each that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys


def test_an_unusable_isa_is_refused_by_name() -> None:
    command = [sys.executable, "-c", "from headrace import _native; _native.isa()"]
    run = subprocess.run(
        command, env={**os.environ, "HEADRACE_ISA": "mmx"}, capture_output=True, text=True, timeout=60
    )
    assert run.returncode != 0
    assert "mmx" in run.stderr
