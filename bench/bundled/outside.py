"""What a model does with prompts that have nothing in common with its training data: rates for its card.

    .venv/bin/python bench/bundled/outside.py --model mini --json

Everything is greedy. Each prompt is asked alone and below one of ten system messages as frameworks send
them, which go round (`--systems all`: below each of them). Intervals are Wilson's of 95 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from outside import shell, sql, texts, tools
from outside.case import Answer, Case, lines_of

from headrace import AsyncLLM
from headrace.errors import HeadraceError

AT_A_TIME = 8
MAX_TOKENS = 120
JOBS = ("sql", "joins", "shell", "tools", "edits", "small talk", "refusals")


def all_cases() -> list[Case]:
    """The whole set."""
    return list(
        chain(
            sql.cases("sql.txt", "sql"), sql.cases("joins.txt", "joins"), shell.cases(), tools.cases(),
            texts.edits(), texts.talk(),
        )
    )  # fmt: skip


def system_messages() -> list[str]:
    """Those of the frameworks."""
    return [line.replace("\\n", "\n") for line in lines_of("systems.txt") if line]


async def ask(llm: AsyncLLM, case: Case, system: str | None, options: dict[str, Any]) -> Answer:
    """What the model gives; an error is an empty answer, never a right one."""
    messages = [{"role": "user", "content": case.prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    if case.tools:
        options = {**options, "tools": list(case.tools)}
    try:
        done = await llm.chat(messages, temperature=0, max_tokens=MAX_TOKENS, **options)
    except HeadraceError as error:
        print(f"{case.prompt[:60]!r}: {error.message}", file=sys.stderr)
        return Answer("")
    calls = tuple((one.name, _arguments(one.arguments)) for one in done.tool_calls)
    return Answer(done.text, calls)


def _arguments(given: object) -> dict[str, Any]:
    try:
        read = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {"": None}
    return read if isinstance(read, dict) else {"": None}  # pyright: ignore[reportUnknownVariableType]


async def ask_all(
    llm: AsyncLLM, asked: Sequence[tuple[Case, str | None]], options: dict[str, Any]
) -> list[Answer]:
    """The answers, in the order of the prompts."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(case: Case, system: str | None) -> Answer:
        async with places:
            return await ask(llm, case, system, options)

    return list(await asyncio.gather(*(one(case, system) for case, system in asked)))


def rate(rights: Iterable[bool]) -> dict[str, Any]:
    """Of how many how many are right, with Wilson's interval of 95 %."""
    scores = list(rights)
    right, count, z = sum(scores), len(scores), 1.96
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return {
        "right": right, "of": count, "percent": round(100 * share, 1),
        "interval": [round(100 * max(0.0, middle - half), 1), round(100 * min(1.0, middle + half), 1)],
    }  # fmt: skip


def report(cases: Sequence[tuple[Case, str | None]], answers: Sequence[Answer]) -> dict[str, Any]:
    """The rates by job, alone and below system messages."""
    scores: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    by_system: dict[str, list[bool]] = defaultdict(list)
    systems = system_messages()
    for (case, system), answer in zip(cases, answers, strict=True):
        where = "alone" if system is None else "system"
        is_right = case.is_right(answer)
        scores[case.job.partition(",")[0]][where].append(is_right)
        if "," in case.job:
            scores[case.job][where].append(is_right)
        if system is not None:
            by_system[str(systems.index(system))].append(is_right)
    return {
        "jobs": {
            job: {where: rate(found) for where, found in kinds.items()} for job, kinds in scores.items()
        },
        "systems": {name: rate(found) for name, found in by_system.items()},
    }


def table(found: dict[str, Any]) -> str:
    """The same for reading."""
    lines = ["| job | alone | below a system message |", "|---|---|---|"]
    for job, kinds in found["jobs"].items():
        cells = [_cell(kinds[where]) if where in kinds else "" for where in ("alone", "system")]
        lines.append(f"| {job} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['percent']} % of {one['of']} [{low:.0f}, {high:.0f}]"


def examples(cases: Sequence[tuple[Case, str | None]], answers: Sequence[Answer], count: int) -> str:
    """The first prompts of each job with their answers, right or not."""
    shown: dict[str, int] = defaultdict(int)
    lines: list[str] = []
    for (case, system), answer in zip(cases, answers, strict=True):
        if system is None and shown[case.job] < count:
            shown[case.job] += 1
            mark = "right" if case.is_right(answer) else "WRONG"
            given = " ".join(f"{name}({arguments})" for name, arguments in answer.calls) or answer.text
            lines.append(f"[{case.job}] {mark}\n  > {case.prompt!r}\n  {given!r}\n  wanted {case.wanted!r}")
    return "\n".join(lines)


async def main() -> None:
    """Measure a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_argument("--systems", choices=["none", "round", "all"], default="round")
    parser.add_argument("--jobs", default=",".join(JOBS), help="some of them, with commas between")
    parser.add_argument("--every", type=int, default=1, help="take every n-th prompt of the set only")
    parser.add_argument("--examples", type=int, default=0, metavar="N", help="print N answers of each job")
    parser.add_argument("--options", default="{}", help="more keywords of each request, as JSON")
    given = parser.parse_args()
    jobs = given.jobs.split(",")
    chosen = [case for case in all_cases() if case.job.partition(",")[0] in jobs][:: given.every]
    systems = system_messages()
    asked: list[tuple[Case, str | None]] = [(case, None) for case in chosen]
    if given.systems == "round":
        asked += [(case, systems[at % len(systems)]) for at, case in enumerate(chosen)]
    elif given.systems == "all":
        asked += [(case, system) for system in systems for case in chosen]
    async with AsyncLLM(given.model) as llm:
        answers = await ask_all(llm, asked, json.loads(given.options))
    found = report(asked, answers)
    if given.examples:
        print(examples(asked, answers, given.examples), file=sys.stderr)
    print(json.dumps({"model": given.model, **found}, indent=2) if given.json else table(found))


if __name__ == "__main__":
    asyncio.run(main())
