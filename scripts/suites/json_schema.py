"""JSON-Schema-Test-Suite, draft 2020-12: its instances forced through the mask of structured output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from outcome import Case, Outcome

ROOT = Path(__file__).resolve().parents[2]


def json_schema_suite(data: Path) -> Outcome:
    """Runs tests/grammar/test_grammar_suite.py, which counts; here its figures are read."""
    report = ROOT / "build" / "suites" / "json-schema.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/grammar/test_grammar_suite.py", f"--junitxml={report}"],
        cwd=ROOT, check=True,
    )  # fmt: skip
    cases: list[Case] = []
    for found in ElementTree.parse(report).iter("property"):
        name, value = found.get("name", ""), found.get("value", "")
        if name.startswith("suite:"):
            outcome, _, reason = value.partition(":")
            cases.append(Case(name.removeprefix("suite:"), outcome, reason.strip()))
    return Outcome("JSON-Schema-Test-Suite", "draft 2020-12", "every instance in several spellings", cases)
