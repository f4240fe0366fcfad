"""`headrace adapt train`: make the best student of a task."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import msgspec
import typer

from headrace.adapt.examples import ExampleStore
from headrace.adapt.schema import open_adapt
from headrace.adapt.training import train
from headrace.cli.flags import takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.terminal import JsonFlag, print_json, status
from headrace.config.adapt_settings import read_adapt
from headrace.config.settings import MODEL_SETTINGS, Settings

HELP = """Make a student of a task: of all kinds that can be certified the one that may answer most.

Tried in this order: the same question again; the five nearest questions agree; a linear head on the encoder's
vectors. Each learns from the earlier examples and is tried on the later ones. Runs at low priority; nothing
is kept before it is done, so that it can be stopped and run again at any time. Then: `headrace adapt shadow`.

\b
Example:
  headrace adapt train t-3fa2
"""
NICE = 10


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Make it; see HELP."""
    os.nice(NICE)
    adapt, database = read_adapt(settings.adapt), open_adapt(settings.store_file)
    try:
        store = ExampleStore(database)
        wanted = store.task(task)
        with status() as shown, loaded(adapt.encoder, settings) as llm:
            name, card = train(store, wanted.id, adapt, partial(llm.embed, truncate=True), shown)
    finally:
        database.close()
    if json:
        print_json({"student": name, "task": wanted.id, "card": msgspec.to_builtins(card)})
        return
    print(
        f"student {name} of task {wanted.id}: {card.rung}, from {card.lessons:,} examples with "
        f"{card.answers:,} answers; it may answer {card.share:.0%} of {card.held_out:,} later ones"
    )
    print(f"judge it by real traffic: headrace adapt shadow {wanted.id}")
