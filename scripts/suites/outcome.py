"""What a suite found: cases by outcome, each that did not pass with its reason."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from misses import FAILED, NOT_PORTABLE, Miss, reason_of


@dataclass(frozen=True)
class Case:
    """One case. `reason` is empty where it passed."""

    name: str
    outcome: str  # passed, or one of misses.py
    reason: str = ""


@dataclass
class Outcome:
    """All cases of one suite. `table` stands before those that did not pass."""

    suite: str
    version: str
    about: str
    cases: list[Case] = field(default_factory=list)
    table: str = ""

    def count(self, outcome: str) -> int:
        """How many cases had that outcome."""
        return sum(case.outcome == outcome for case in self.cases)

    def misses(self) -> dict[tuple[str, str], list[str]]:
        """Cases that did not pass, by outcome and reason, the most frequent reason first."""
        reasons = Counter((case.outcome, case.reason) for case in self.cases if case.outcome != "passed")
        return {
            key: [case.name for case in self.cases if (case.outcome, case.reason) == key]
            for key, _ in sorted(reasons.items(), key=lambda row: (row[0][0], -row[1]))
        }


def read_junit(path: Path, known: Sequence[Miss]) -> list[Case]:
    """The cases of pytest's JUnit XML, with the reasons of `known` misses."""
    return [_case(element, known) for element in ElementTree.parse(path).iter("testcase")]


def _case(element: ElementTree.Element, known: Sequence[Miss]) -> Case:
    name = f"{element.get('classname', '').rpartition('.')[2]}::{element.get('name')}"
    trouble = next((child for child in element if child.tag in ("failure", "error", "skipped")), None)
    if trouble is None:
        return Case(name, "passed")
    text = f"{trouble.get('message', '')}\n{trouble.text or ''}"
    text += "".join(child.text or "" for child in element if child.tag in ("system-out", "system-err"))
    if trouble.tag == "skipped":
        return Case(name, NOT_PORTABLE, f"skipped by the suite: {_short(trouble.get('message', ''))}")
    miss = reason_of(known, name, text)
    if miss is not None:
        return Case(name, miss.outcome, miss.reason)
    return Case(name, FAILED, _short(trouble.get("message", "") or "no message"))


def _short(message: str) -> str:
    """One line: the first that says something, without numbers that differ between runs."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    line = re.sub(r"(req_|chatcmpl-|cmpl-|msg_|resp_)[0-9a-f]+", r"\1…", line)
    line = re.sub(r"\b\d{4,5}\b(?=[/)])|0x[0-9a-f]+", "…", line)
    return line[:160]
