"""JSON-Schema-Test-Suite: its instances forced through the mask of structured output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from misses import FAILED, NOT_OFFERED
from outcome import Case, Outcome
from sources import Workplace

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/grammar/test_grammar_suite.py"
FIGURES = re.compile(
    r"(?P<folder>.+): (?P<accepted>\d+) groups accepted, (?P<refused>\d+) refused, "
    r"(?P<impossible>\d+) without any instance; (?P<right>\d+) cases right, "
    r"(?P<accepts>\d+) accepted and (?P<rejects>\d+) rejected falsely"
)
REASONS = {
    "right": ("passed", ""),
    "refused": (NOT_OFFERED, "groups whose schema is refused, with the keyword named in the error"),
    "rejects": (
        FAILED,
        "valid instances that the mask lets through in no spelling: 1.0 as an integer",
    ),
    "accepts": (FAILED, "invalid instances accepted: the format regex is not checked, which a warning says"),
}


def json_schema_suite(workplace: Workplace, data: Path) -> Outcome:
    """Runs tests/grammar/test_grammar_suite.py, which counts; here its figures are read."""
    report = workplace.folder / "reports" / "json-schema.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/grammar/test_grammar_suite.py",
        f"--junitxml={report}",
    ]
    environment = {**os.environ, "HEADRACE_SHARED_DATA": str(data)}
    subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)
    cases: list[Case] = []
    for found in ElementTree.parse(report).iter("property"):
        if found.get("name") == "figures":
            cases += _cases(found.get("value", ""))
    if not cases:
        raise SystemExit(f"{TESTS} wrote no figures into {report}")
    about = "cases of every draft, each instance in several spellings; a refused group counts once"
    return Outcome("JSON-Schema-Test-Suite", "drafts 4 to 2020-12", about, cases)


def _cases(value: str) -> list[Case]:
    figures = FIGURES.fullmatch(value)
    if figures is None:
        raise SystemExit(f"these are no figures of {TESTS}: {value}")
    return [Case(figures["folder"], *REASONS[name]) for name in REASONS for _ in range(int(figures[name]))]
