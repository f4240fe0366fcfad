"""`headrace adapt shadow`: judge a student beside what answers today."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import typer

from headrace.adapt.examples import ExampleStore
from headrace.adapt.promotion import start_shadow
from headrace.adapt.schema import open_adapt
from headrace.adapt.shadow import catch_up, prospects
from headrace.cli.flags import takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.adapt_settings import read_adapt
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
    adapt, database = read_adapt(settings.adapt), open_adapt(settings.store_file)
    try:
        store = ExampleStore(database)
        wanted = store.task(task)
        student = start_shadow(store, wanted.id)
        with loaded(adapt.encoder, settings) as llm:
            said = catch_up(store, student, partial(llm.embed, truncate=True))
        found = [one for one in prospects(store) if one.student == student.id]
    finally:
        database.close()
    if json:
        print_json({"standing": said, "prospect": msgspec.to_builtins(found[0]) if found else None})
    else:
        print(found[0].line if found else f"student {student.id} is worse than the margin allows")
