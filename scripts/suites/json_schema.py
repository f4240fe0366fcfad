"""JSON-Schema-Test-Suite: its instances forced through the mask of structured output."""

from __future__ import annotations

import json
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
COLUMNS = ("accepted", "refused", "impossible", "right", "accepts", "rejects")
HEAD = """| folder | groups accepted | refused by name | without any instance | cases right | accepted falsely | rejected falsely |
|---|---|---|---|---|---|---|
"""  # noqa: E501
NAMED = re.compile(
    r"keyword '(?P<keyword>[^']+)'|(?P<other>multipleOf|patternPropert|regex parse error|circular references"
    r"|Unsatisfiable schema)"
)
REASONS = {
    "right": ("passed", ""),
    "rejects": (
        FAILED,
        "valid instances that the mask lets through in no spelling: 1.0, formats",
    ),
    "accepts": (FAILED, "invalid instances accepted: the format regex is not checked, which a warning says"),
}


def json_schema_suite(workplace: Workplace, data: Path) -> Outcome:
    """Runs tests/grammar/test_grammar_suite.py, which counts; here its figures are read."""
    report = workplace.folder / "reports" / "json-schema.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        TESTS,
        "-o",
        "junit_family=xunit1",
        f"--junitxml={report}",
    ]
    environment = {**os.environ, "HEADRACE_SHARED_DATA": str(data)}
    subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)
    cases: list[Case] = []
    rows: list[str] = []
    for test in ElementTree.parse(report).iter("testcase"):
        found = {one.get("name"): one.get("value", "") for one in test.iter("property")}
        if "figures" not in found:
            raise SystemExit(f"{TESTS} wrote no figures into {report} for {test.get('name')}")
        figures = FIGURES.fullmatch(found["figures"])
        if figures is None:
            raise SystemExit(f"these are no figures of {TESTS}: {found['figures']}")
        folder = figures["folder"]
        rows.append(f"| {folder} | {' | '.join(figures[name] for name in COLUMNS)} |")
        cases += [Case(folder, *REASONS[name]) for name in REASONS for _ in range(int(figures[name]))]
        cases += [_refused(folder, text) for text in json.loads(found["refused"])]
    if not cases:
        raise SystemExit(f"{TESTS} ran no test: see {report}")
    about = "cases of every draft, each instance in several spellings; a refused group counts once"
    table = HEAD + "\n".join(rows) + "\n"
    return Outcome("JSON-Schema-Test-Suite", "drafts 4 to 2020-12", about, cases, table)


def _refused(folder: str, text: str) -> Case:
    """A group whose schema is refused, by what the error names."""
    named = NAMED.search(text.partition(": ")[2])
    keyword = (named["keyword"] or named["other"]) if named else "another reason"
    keyword = keyword.replace("patternPropert", "patternProperties") if "ies" not in keyword else keyword
    return Case(f"{folder}/{text.split(': json_schema')[0]}", NOT_OFFERED, f"schemas refused: {keyword}")
