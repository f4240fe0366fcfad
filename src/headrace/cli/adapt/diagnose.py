"""`headrace adapt diagnose`: what a task costs, where it goes wrong, and what a student could answer."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headrace.adapt.decisions.diagnosis import Diagnosis, RungReach, diagnose
from headrace.cli.adapt.opened import opened_task
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, print_table, printable
from headrace.config.settings import MODEL_SETTINGS, Settings

HELP = """Show what a task costs, how often it goes wrong, and how much of it a student could answer.

\b
Example:
  headrace adapt diagnose t-3fa2
"""


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Print it; see HELP."""
    with opened_task(task, settings) as opened:
        found = diagnose(opened.store, opened.task, opened.adapt, opened.embed)
    print_json(msgspec.to_builtins(found)) if json else _print(found)


def _figures(one: RungReach) -> tuple[str, str, str]:
    if not one.tried:
        return ("-", "-", "-")
    return (f"{one.tried:,}", f"{one.right:.1%}", f"{one.share:.1%}")


def _print(found: Diagnosis) -> None:
    print(f"{found.task} {printable(found.name)}: {found.examples:,} examples, ${found.usd:.4f}")
    times = f"{found.median_s:.2f} s by the median, {found.slow_s:.2f} s at 95 %"
    print(f"${found.usd_per_month:,.2f} a month; {times}")
    print(f"{found.distinct_answers:,} answers, the most common one {found.common_answer:.0%}")
    failed = [(one.kind, f"{one.count:,}", ", ".join(one.replies)) for one in found.failures]
    if failed:
        print_table(failed, header=("WENT WRONG", "TIMES", "REPLIES"), fit=True)
    rungs = [(one.rung, *_figures(one), one.problem) for one in found.rungs]
    if rungs:
        print_table(rungs, header=("STUDENT", "TRIED", "RIGHT", "MAY ANSWER", ""), fit=True)
    groups = [(str(one.group), f"{one.examples:,}", f"{one.right:.1%}") for one in found.groups]
    if groups:
        print_table(groups, header=("GROUP", "TRIED", "RIGHT"))
    if found.missing:
        print(found.missing)
