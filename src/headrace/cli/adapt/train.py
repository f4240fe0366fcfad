"""`headrace adapt train`: make the best student of a task."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.adapt.actions import Trained, plain
from headrace.adapt.schema import adapt_file
from headrace.adapt.tasks import embed_examples
from headrace.adapt.training_process import TrainingProcess
from headrace.cli.adapt.opened import opened_task, weights_here
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, status
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import HeadraceError

HELP = """Make a student of a task: of all kinds that can be certified the one that may answer most.

Tried in this order: the same question again; the five nearest questions agree; a linear head on the encoder's
vectors; where these may not answer four fifths of the requests, a low-rank adapter (LoRA) on the model
adapt.base, which writes its answers and needs headrace[train]. Each learns from the earlier examples and is
tried on the later ones. It runs in a process of its own with the lowest priority, within adapt.train_memory
and adapt.train_hours, and waits while requests are under way. Where it is stopped or killed, it goes on from
its last checkpoint. Then: `headrace adapt shadow`.

\b
Example:
  headrace adapt train t-3fa2
"""


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Make it; see HELP."""
    with status() as shown, opened_task(task, settings) as opened:
        wanted = opened.task
        embed_examples(opened.store.database, opened.adapt.encoder, opened.embed, task=wanted.id)
    with status() as shown:
        shown("trying the ladder; it can be interrupted, and goes on the next time")
        base, weights, unfit = opened.adapt.base, None, ""
        try:
            weights = None if base is None else weights_here(base, settings)
        except HeadraceError as error:  # students that choose need none
            unfit = error.message
        process = TrainingProcess(adapt_file(settings.store_file), wanted.id, opened.adapt, weights, unfit)
        try:
            name, card = process.result()
        finally:
            process.stop()
    if json:
        print_json(plain(Trained(student=name, task=wanted.id, card=card)))
        return
    learned = f"{card.lessons:,} examples" + (f" with {card.answers:,} answers" if card.answers else "")
    print(
        f"student {name} of task {wanted.id}: {card.rung}, from {learned}; it may answer {card.share:.0%} of "
        f"{card.held_out:,} later ones"
    )
    for rung, why in card.skipped.items():
        print(f"{rung} was not tried: {why}")
    print(f"judge it by real traffic: headrace adapt shadow {wanted.id}")
