"""Damaged files of every kind give a result or a typed error: some in each run, many in `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuzz.targets import TARGETS, damaged, run, seeds

SECONDS = os.environ.get("HEADRACE_FUZZ_SECONDS", "60")
DAMAGED = int(os.environ.get("TEST_DAMAGED_FILES", "100"))  # 300 by `make nightly`
SHARE = {"gguf": 0.4, "template": 0.5}  # of these, which take longer


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_files(tmp_path: Path, target: str) -> None:
    random = np.random.default_rng(7)
    starts = seeds(target, tmp_path)
    for start in starts:
        TARGETS[target](tmp_path, start)  # what is mutated is valid
    for index in range(int(DAMAGED * SHARE.get(target, 1))):
        run(target, tmp_path, damaged(starts[index % len(starts)], random))


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_coverage_guided(tmp_path: Path, target: str) -> None:
    pytest.importorskip(
        "atheris", reason="the fuzzer is not here: pip install atheris (Linux, Python 3.11 to 3.13)"
    )
    command = [sys.executable, str(Path(__file__).with_name("harness.py")), target, SECONDS]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=int(SECONDS) + 120)
    assert done.returncode == 0, done.stderr[-4000:].decode(errors="replace")
