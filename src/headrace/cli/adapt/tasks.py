"""`headrace adapt tasks`: what the traffic consists of."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from headrace.adapt import actions
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import TaskView, find_groups, task_views
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.terminal import JsonFlag, print_json, print_table, printable, status
from headrace.config.adapt_settings import read_adapt
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError

SHOWN = 60
"""Characters of instructions."""
HELP = """Find the tasks in what was collected, and list them; those that cost most come first.

Requests of one program are one task: their instructions without variables, tools, form of answer, endpoint
and key are the same. Within a task, questions that are alike are a group; these are found anew where there
are enough new examples, and keep their numbers.

\b
Examples:
  headrace adapt tasks
  headrace adapt tasks t-3fa2
  headrace adapt tasks --rename t-3fa2 "order questions"
  headrace adapt tasks --evaluator t-3fa2 judge
"""


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Show the groups of this task.")
    ] = None,
    rename: Annotated[
        tuple[str, str] | None, typer.Option(metavar="TASK NAME", help="Give a task a name.")
    ] = None,
    evaluator: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="TASK KIND",
            help="Compare students of a task by equality (equal), by the model adapt.judge (judge), or by it "
            "where equality certifies nothing (auto). It holds for students that are trained from now on.",
        ),
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """List them; see HELP."""
    if (task is not None) + (rename is not None) + (evaluator is not None) > 1:
        raise UsageError("tasks takes one of TASK, --rename and --evaluator")
    with opened_store(settings) as store:
        if rename:
            actions.rename(store, *rename)
        elif evaluator:
            actions.evaluate_by(store, *evaluator)
        elif store.database.exists:
            _find(store, settings)
        views, file = task_views(store), store.database.path
        if task:
            wanted = store.task(task).id
            views = [one for one in views if one.id == wanted]
    if not views and not json:
        print(f"no tasks yet: a server with the table [adapt] collects requests in {file}")
        return
    _show(views, json, with_groups=task is not None)


def _find(store: ExampleStore, settings: Settings) -> None:
    encoder = read_adapt(settings.adapt).encoder
    with status() as shown, loaded(encoder, settings) as llm:
        find_groups(store, encoder, partial(llm.embed, truncate=True), shown)


def _show(views: list[TaskView], json: bool, *, with_groups: bool) -> None:
    if json:
        print_json(msgspec.to_builtins(views))
        return
    rows: list[Any] = [
        (
            *(one.id, f"{one.examples:,}", f"{one.usd:.4f}", str(len(one.groups)), one.key_group, one.name),
            textwrap.shorten(one.instructions, SHOWN, placeholder=" …"),
        )
        for one in views
    ]
    print_table(rows, header=("TASK", "EXAMPLES", "$", "GROUPS", "OF", "NAME", "INSTRUCTIONS"), fit=True)
    if with_groups:
        for view in views:
            print(f"{view.endpoint}, ${view.usd:,.4f}, {view.per_day:,.0f} requests a day")
            print(f"instructions: {printable(' '.join(view.instructions.split())) or 'none'}")
        groups = [(str(one.number), f"{one.size:,}", one.name) for view in views for one in view.groups]
        print_table(groups, header=("GROUP", "SIZE", "NAME"), fit=True)
