"""`headrace adapt shadow`: judge a student beside what answers today."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.adapt.actions import plain, shadow
from headrace.adapt.registry import person
from headrace.cli.adapt.opened import opened_task
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import MODEL_SETTINGS, Settings

HELP = """Judge the student of a task by every request that came since it was made, and by all that follow.

A running server goes on with it and logs a line when the student is ready; clients see nothing of it.

\b
Example:
  headrace adapt shadow t-3fa2
"""


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Judge it; see HELP."""
    with opened_task(task, settings) as opened:
        found = shadow(opened.store, opened.task.id, opened.embed, person())
    if json:
        print_json(plain(found))
    elif found.prospect is not None:
        print(found.prospect.line)
    else:
        print(f"the student of task {opened.task.id} is worse than the margin allows")
