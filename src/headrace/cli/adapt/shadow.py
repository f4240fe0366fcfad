"""`headrace adapt shadow`: judge a student beside what answers today."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from headrace.adapt.actions import plain, shadow
from headrace.adapt.ladder import TaskExample
from headrace.adapt.registry import StudentRow, person
from headrace.adapt.rungs.tagging import Tagger
from headrace.adapt.rungs.teaching import ADAPTER, WHOLE, students_folder
from headrace.adapt.rungs.word_states import reader
from headrace.adapt.rungs.writing import conversation_of, tokens_of, writer
from headrace.adapt.schema import adapt_file
from headrace.adapt.students import StudentAnswer
from headrace.cli.adapt.opened import opened_task, weights_here
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, printable
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
        written = partial(_written, settings)
        found = shadow(opened.store, opened.task.id, opened.embed, person(), written)
    if json:
        print_json(plain(found))
    elif found.prospect is not None:
        print(printable(found.prospect.line))
    else:
        print(f"the student of task {opened.task.id} is worse than the margin allows")


def _written(settings: Settings, row: StudentRow, examples: Sequence[TaskExample]) -> list[StudentAnswer]:
    """What a student says that makes its answers: its model and weights are loaded for it."""
    if not row.model.is_loaded:
        head = Tagger(row.model)
        with reader(weights_here(row.model.base, settings)) as reads:
            return [head.answer(one) for one in reads(head.form, [one.question for one in examples])]
    folder = students_folder(adapt_file(settings.store_file)) / row.id
    base, adapter = (folder / WHOLE, None)
    if row.model.base:
        base, adapter = weights_here(row.model.base, settings), folder / ADAPTER
    with writer(base, adapter) as student:
        return student.answers([conversation_of(one) or () for one in examples], tokens_of(examples))
