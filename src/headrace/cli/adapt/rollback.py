"""`headrace adapt rollback`: the large model answers again."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headrace.adapt.examples import ExampleStore
from headrace.adapt.promotion import roll_back
from headrace.adapt.registry import Registry, person
from headrace.adapt.schema import open_adapt
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import Settings
from headrace.errors import UsageError

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
    database = open_adapt(settings.store_file)
    try:
        store = ExampleStore(database)
        wanted = store.task(task)
        found = roll_back(store, wanted.id, person())
        record = Registry(database).decisions(wanted.id)
    finally:
        database.close()
    if found is None:
        raise UsageError(f"task {wanted.id} has no promoted student")
    if json:
        print_json({"student": found.id, "decisions": msgspec.to_builtins(record)})
        return
    print(f"student {found.id} of task {wanted.id} is rolled back")
    for one in record:
        print(f"{one.what} by {one.who}: {one.detail}")
