"""`headrace adapt rollback`: the large model answers again."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.adapt.actions import plain, roll_back_student
from headrace.adapt.students.registry import person
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import Settings

HELP = """Let the promoted student of a task answer no more, at once; all decisions about it are listed.

\b
Example:
  headrace adapt rollback t-3fa2
"""


@takes_settings("store")
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Roll it back; see HELP."""
    with opened_store(settings) as store:
        found = roll_back_student(store, task, person())
    if json:
        print_json(plain(found))
        return
    print(f"student {found.student} is rolled back")
    for one in found.decisions:
        print(f"{one.what} by {one.who}: {one.detail}")
