"""`headrace adapt history`: the students of a task, and what was decided about them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.adapt.actions import plain
from headrace.adapt.decisions.history import history
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, printable
from headrace.config.settings import Settings

HELP = """Show the students of a task with the evidence about them, and every decision: what, when, by whom.

The capital of a student is what bets on it have made of 1: it is proposed where that reaches 1 / alpha.

\b
Examples:
  headrace adapt history t-3fa2
  headrace adapt history t-3fa2 --json
"""


@takes_settings("store")
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Print it; see HELP."""
    with opened_store(settings) as store:
        found = history(store, store.task(task).id)
    if json:
        print_json(plain(found))
        return
    if not found.students and not found.decisions:
        print(f"no students and no decisions yet: `headrace adapt train {found.task}` makes a student")
    for one in found.students:
        said = one.evidence
        print(
            f"student {one.id} ({one.card.rung}) is {one.state.replace('_', ' ')}: better in {said.better:,} "
            f"of {said.better + said.same + said.worse:,} examples, worse in {said.worse:,}; capital "
            f"{said.capital:.3g} of {said.needed:g}"
        )
        if one.judge is not None:
            print(printable(f"  {one.judge.line}"))
    for one in found.decisions:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.at_s))
        print(f"{at} {one.student} {one.what.replace('_', ' ')} by {one.who}: {one.detail}")
