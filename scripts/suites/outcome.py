"""What a suite found: cases by outcome, each that did not pass with its reason."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One case. `reason` is empty where it passed."""

    name: str
    outcome: str  # passed, failed, or not portable
    reason: str = ""


@dataclass
class Outcome:
    """All cases of one suite."""

    suite: str
    version: str
    about: str
    cases: list[Case] = field(default_factory=list)

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


def read_junit(path: Path, not_portable: dict[str, str]) -> list[Case]:
    """The cases of pytest's JUnit XML. A failure whose text matches a pattern of `not_portable` needs what
    cannot be had here; the pattern's value says what."""
    return [_case(element, not_portable) for element in ElementTree.parse(path).iter("testcase")]


def _case(element: ElementTree.Element, not_portable: dict[str, str]) -> Case:
    name = f"{element.get('classname', '').rpartition('.')[2]}::{element.get('name')}"
    trouble = next((child for child in element if child.tag in ("failure", "error", "skipped")), None)
    if trouble is None:
        return Case(name, "passed")
    text = f"{trouble.get('message', '')}\n{trouble.text or ''}"
    text += "".join(child.text or "" for child in element if child.tag in ("system-out", "system-err"))
    if trouble.tag == "skipped":
        return Case(name, "not portable", f"skipped by the suite: {_short(trouble.get('message', ''))}")
    why = next((why for pattern, why in not_portable.items() if re.search(pattern, text)), None)
    if why is not None:
        return Case(name, "not portable", why)
    return Case(name, "failed", _short(trouble.get("message", "") or "no message"))


def _short(message: str) -> str:
    """One line: the first that says something, without numbers that differ between runs."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    line = re.sub(r"(req_|chatcmpl-|cmpl-|msg_|resp_)[0-9a-f]+", r"\1…", line)
    line = re.sub(r"\b\d{4,5}\b(?=[/)])|0x[0-9a-f]+", "…", line)
    return line[:160]
