"""Runs public test suites against Headrace and writes bench/results/suites.md.

    python scripts/suites/run.py [--only llama.cpp,openai,anthropic,json-schema]

Suites come from source distributions on the package index, which are not part of this repository.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable
from pathlib import Path

from json_schema import json_schema_suite
from llama_cpp import llama_cpp_suite
from outcome import Outcome
from sdk import anthropic_suite, openai_suite
from sources import Workplace

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "suites.md"
MAX_NAMES = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names of suites, separated by commas")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "suites")
    data = Path(os.environ.get("HEADRACE_SHARED_DATA", ROOT.parent / "shared" / "data"))
    options = parser.parse_args()
    workplace = Workplace(options.work.resolve())
    workplace.prepare()
    suites: dict[str, Callable[[], Outcome]] = {
        "llama.cpp": lambda: llama_cpp_suite(workplace, data),
        "openai": lambda: openai_suite(workplace),
        "anthropic": lambda: anthropic_suite(workplace),
        "json-schema": lambda: json_schema_suite(data),
    }
    chosen = options.only.split(",") if options.only else list(suites)
    for name in chosen:
        print(name, flush=True)
        found = suites[name]()
        print(f"  {found.count('passed')} passed, {found.count('failed')} failed", flush=True)
        (workplace.folder / f"{name}.md").write_text(section(found))
    parts = [path.read_text() for name in suites if (path := workplace.folder / f"{name}.md").exists()]
    RESULTS.write_text(HEAD + "\n".join(parts))
    print(f"written: {RESULTS.relative_to(ROOT)}")


HEAD = """# Public test suites

Made by `make suites`. *Not portable* are cases that need a model, file or feature that cannot be had here;
each reason is named. Cases are counted as the suite's own runner counts them.

"""


def section(found: Outcome) -> str:
    """The part of the page about one suite."""
    passed, failed, other = (found.count(outcome) for outcome in ("passed", "failed", "not portable"))
    lines = [
        f"## {found.suite}, {found.version}",
        "",
        f"{datetime.date.today():%Y-%m-%d}; {found.about}.",
        "",
        f"**{passed} of {passed + failed} portable cases pass**; {other} are not portable.",
        "",
        "| outcome | cases | reason | names |",
        "|---|---|---|---|",
    ]
    for (outcome, reason), names in found.misses().items():
        shown = ", ".join(f"`{name}`" for name in names[:MAX_NAMES])
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        lines.append(f"| {outcome} | {len(names)} | {_cell(reason)} | {_cell(shown)}{more} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
