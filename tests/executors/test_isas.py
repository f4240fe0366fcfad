"""The native executor's tests pass with every instruction set of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import _native


@pytest.mark.parametrize("isa", [isa for isa in _native.usable_isas() if isa != _native.isa()])
def test_native_executor_with_isa(isa: str) -> None:
    tests = [str(Path(__file__).with_name(name)) for name in ("test_native.py", "test_experts.py")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "HEADRACE_ISA": isa}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


def test_an_unusable_isa_is_refused_by_name() -> None:
    command = [sys.executable, "-c", "from headrace import _native; _native.isa()"]
    run = subprocess.run(
        command, env={**os.environ, "HEADRACE_ISA": "mmx"}, capture_output=True, text=True, timeout=60
    )
    assert run.returncode != 0
    assert "mmx" in run.stderr
