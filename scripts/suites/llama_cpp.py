"""The tests of llama.cpp's server, as llama-cpp-python ships them, with `headrace serve` in its place.

They start a server program; `llama_server.py` stands there and translates its flags. Of the models that they
download stand_ins.py makes those that can be had without the hub.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from misses import LLAMA_CPP
from outcome import Case, Outcome, read_junit
from served import free_port
from sources import Workplace

VERSION = "0.3.36"


def llama_cpp_suite(workplace: Workplace, data: Path, *, resume: bool = False) -> Outcome:
    """All cases of tools/server/tests/unit that are not marked slow."""
    source, version = workplace.source("llama-cpp-python", VERSION)
    vendored, copied = source / "vendor" / "llama.cpp", workplace.folder / "llama.cpp"
    tests = copied / "tools" / "server" / "tests"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(vendored / "tools" / "server" / "tests", tests)
    shutil.copytree(vendored / "models" / "templates", copied / "models" / "templates")
    (tests / "tmp").mkdir()
    # Its session fixture would download every model before the first test.
    conftest = tests / "conftest.py"
    conftest.write_text(conftest.read_text().replace("ServerPreset.load_all()", "pass"))
    program = _program(workplace, data)
    cases: list[Case] = []
    for path in sorted((tests / "unit").glob("test_*.py")):
        print(f"  {path.name}", flush=True)
        report = workplace.report(f"llama.cpp-{path.stem}")
        if resume and report.exists():
            cases += read_junit(report, LLAMA_CPP)
            continue
        report = workplace.pytest(
            f"llama.cpp-{path.stem}", tests, str(path.relative_to(tests)), "-m", "not slow",
            environment={
                **os.environ,
                "LLAMA_SERVER_BIN_PATH": str(program),
                "PORT": str(free_port()),
                "PYTHONPATH": str(tests),
                "XDG_DATA_HOME": str(workplace.folder / "llama-server-data"),
            },
            timeout_s=1800,
        )  # fmt: skip
        cases += read_junit(report, LLAMA_CPP)
    return Outcome(
        "llama.cpp server",
        f"llama-cpp-python {version}",
        "tools/server/tests/unit, without those marked slow; a BERT with random weights stands for bge-small",
        cases,
    )


def _program(workplace: Workplace, data: Path) -> Path:
    """What the cases start in the place of llama-server."""
    models = workplace.folder / "models"
    models.mkdir(exist_ok=True)
    shim = Path(__file__).with_name("llama_server.py")
    program = workplace.folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{shim}" "{models}" "{data}" "$@"\n')
    program.chmod(0o755)
    return program
