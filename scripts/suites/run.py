"""Runs public test suites against Headrace and writes bench/results/suites.md.

    python scripts/suites/run.py [--only llama.cpp,openai,anthropic,json-schema] [--resume]

Suites come from source distributions on the package index, which are not part of this repository.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from json_schema import json_schema_suite
from llama_cpp import llama_cpp_suite
from misses import FAILED, NOT_OFFERED, NOT_PORTABLE
from outcome import Outcome
from sdk import anthropic_suite, openai_suite
from sources import Workplace

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "suites.md"
MAX_NAMES = 12
OUTCOMES = ("passed", FAILED, NOT_OFFERED, NOT_PORTABLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names of suites, separated by commas")
    parser.add_argument(
        "--resume", action="store_true", help="do not run files of llama.cpp's suite again that have a report"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "suites")
    data = Path(os.environ.get("HEADRACE_SHARED_DATA", ROOT.parent / "shared" / "data"))
    options = parser.parse_args()
    workplace = Workplace(options.work.resolve())
    workplace.prepare()
    suites: dict[str, Callable[[], Outcome]] = {
        "llama.cpp": lambda: llama_cpp_suite(workplace, data, resume=options.resume),
        "openai": lambda: openai_suite(workplace, data),
        "anthropic": lambda: anthropic_suite(workplace),
        "json-schema": lambda: json_schema_suite(workplace, data),
    }
    chosen = options.only.split(",") if options.only else list(suites)
    for name in chosen:
        print(name, flush=True)
        found = suites[name]()
        print(f"  {found.count('passed')} passed, {found.count('failed')} failed", flush=True)
        kept = {"row": row(found), "section": section(found)}
        (workplace.folder / f"{name}.json").write_text(json.dumps(kept))
        write_page(workplace.folder, suites)
    print(f"written: {RESULTS.relative_to(ROOT)}")


def write_page(folder: Path, names: Iterable[str]) -> None:
    """The page of all suites that have been run, some perhaps at another time."""
    parts = [json.loads(path.read_text()) for name in names if (path := folder / f"{name}.json").exists()]
    table = "\n".join(part["row"] for part in parts)
    RESULTS.write_text(f"{HEAD}{table}\n\n" + "\n".join(part["section"] for part in parts))


HEAD = """# Public test suites

Made by `make suites`. *Failed* are cases that ask for something that Headrace does differently,
*not offered* those of a feature that it does not have, *not portable* those that no server could pass here:
they need a file that cannot be had, or a mock. Each has its reason.
Cases are counted as the suite's own runner counts them.

| suite | version | date | passed | failed | not offered | not portable |
|---|---|---|---|---|---|---|
"""


def row(found: Outcome) -> str:
    """The line of the table about one suite."""
    counts = " | ".join(str(found.count(outcome)) for outcome in OUTCOMES)
    return f"| {found.suite} | {found.version} | {datetime.date.today():%Y-%m-%d} | {counts} |"


def section(found: Outcome) -> str:
    """The part of the page about one suite."""
    lines = [
        f"## {found.suite}",
        "",
        f"{found.about}.",
        "",
        *([found.table] if found.table else []),
        "| outcome | cases | reason | names |",
        "|---|---|---|---|",
    ]
    for (outcome, reason), names in found.misses().items():
        count, names = len(names), list(dict.fromkeys(names))
        shown = ", ".join(f"`{name}`" for name in names[:MAX_NAMES])
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        lines.append(f"| {outcome} | {count} | {_cell(reason)} | {_cell(shown)}{more} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
