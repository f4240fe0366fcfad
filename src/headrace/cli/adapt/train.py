"""`headrace adapt train`: make the best student of a task."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from headrace.adapt.actions import Trained, plain
from headrace.adapt.schema import adapt_file
from headrace.adapt.students.checkpoints import running_trainings
from headrace.adapt.students.registry import Card, RungReport
from headrace.adapt.students.rungs.folders import folders_of
from headrace.adapt.students.student import Rung
from headrace.adapt.students.training_process import TrainingProcess
from headrace.adapt.traffic.tasks import embed_examples
from headrace.cli.adapt.opened import opened_store, opened_task, weights_here
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, print_table, status
from headrace.config.settings import MODEL_SETTINGS, Settings

GOES_ON = "; it can be interrupted, and goes on the next time"
HELP = """Make a student of a task: of all kinds that can be certified the one that may answer most.

Tried in this order, each only where those before leave requests that are worth its time: the same question
again (exact); the five nearest questions agree (nearest); a linear head on the encoder's vectors (head); a
head that finds the parts of the question of which the answer is made (tagger); where these may not answer
four fifths of the requests, a low-rank adapter of the model adapt.base (lora), and then all weights of
adapt.student (distilled), which write their answers and need headrace[train]. Each learns from the earlier
examples and is tried on the later ones. It runs in a process of its own with the lowest priority, within
adapt.train_memory and adapt.train_hours, and waits while requests are under way. Where it is stopped or
killed, it goes on from its last checkpoint. Then: `headrace adapt shadow`.

\b
Examples:
  headrace adapt train t-3fa2
  headrace adapt train t-3fa2 --rung tagger
"""


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    rung: Annotated[
        Rung | None, typer.Option(help="Try this kind alone, whatever others reach.", show_default="all")
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Make it; see HELP."""
    with status() as shown, opened_task(task, settings) as opened:
        wanted = opened.task
        embed_examples(opened.store.database, opened.adapt.encoder, opened.embed, task=wanted.id)
        here = partial(weights_here, settings=settings)
        folders = folders_of(opened.store, wanted.id, opened.adapt, here)
    with status() as shown, opened_store(settings) as store:
        shown(f"trying the ladder{GOES_ON}")

        def waiting() -> None:
            for one in running_trainings(store.database):
                if one.task == wanted.id:
                    shown(f"{one.stage}, for {time.time() - one.started_s:,.0f} s{GOES_ON}")

        process = TrainingProcess(adapt_file(settings.store_file), wanted.id, opened.adapt, folders, rung)
        try:
            name, card = process.result(waiting)
        finally:
            process.stop()
    if json:
        print_json(plain(Trained(student=name, task=wanted.id, card=card)))
        return
    learned = f"{card.lessons:,} examples" + (f" with {card.answers:,} answers" if card.answers else "")
    print(f"student {name} of task {wanted.id}: {card.rung}, from {learned}; {_reach(card)}")
    print_table(
        [_row(one) for one in card.report],
        header=("RUNG", "RIGHT", "MAY ANSWER", "SECONDS", "BYTES", ""),
        fit=True,
    )
    print(f"judge it by real traffic: headrace adapt shadow {wanted.id}")


def _reach(card: Card) -> str:
    if card.evaluator == "equal":
        return f"it may answer {card.share:.0%} of {card.held_out:,} later ones"
    equal = next(one.score for one in card.report if one.rung == card.rung)
    return (
        f"of what it says to later ones {equal:.0%} equal the known answers; a judge will compare the "
        "others, and no certificate chooses among them"
    )


def _row(one: RungReport) -> tuple[str, ...]:
    if not one.tried:
        return (one.rung, "-", "-", "-", "-", f"not tried: {one.why}")
    return (
        *(one.rung, f"{one.score:.1%}", f"{one.share:.1%}", f"{one.seconds:.1f}", f"{one.bytes:,}"),
        one.why,
    )
