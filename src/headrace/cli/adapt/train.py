"""`headrace adapt train`: make the best student of a task."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.adapt.actions import Trained, plain
from headrace.adapt.training import train
from headrace.cli.adapt.opened import opened_task
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, status
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
    with status() as shown, opened_task(task, settings) as opened:
        wanted = opened.task
        name, card = train(opened.store, wanted.id, opened.adapt, opened.embed, shown)
    if json:
        print_json(plain(Trained(student=name, task=wanted.id, card=card)))
        return
    print(
        f"student {name} of task {wanted.id}: {card.rung}, from {card.lessons:,} examples with "
        f"{card.answers:,} answers; it may answer {card.share:.0%} of {card.held_out:,} later ones"
    )
    print(f"judge it by real traffic: headrace adapt shadow {wanted.id}")
