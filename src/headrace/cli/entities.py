"""`headrace entities`: entities in a file or in piped text, marked in the text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import convert, to_builtins

from headrace.cli.flags import takes_settings
from headrace.cli.task_model import TAGGER, TASK_SETTINGS, ModelFlag, ServerFlag, task_model
from headrace.cli.terminal import DIM, PLAIN, JsonFlag, aside, is_styled, print_json
from headrace.cli.text_input import read_text
from headrace.config.settings import Settings
from headrace.tasks.entities import Entity
from headrace.tasks.entity_windows import STRIDE

HELP = """Find entities in a text, by labels of your own.

The text is a FILE, or what is piped in (-). On a terminal it is printed with the entities in colors; in a
pipe one line an entity: start, end, score, label, text. Texts longer than the model's context are read in
windows.

\b
Examples:
  headrace entities letter.txt --labels person,location
  echo "John Miller lives in Berlin" | headrace entities --labels person,location --json
"""
COLORS = (42, 43, 46, 45, 44, 41)  # of the background


@takes_settings(*TASK_SETTINGS)
def command(
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="The text; - is stdin.")] = "-",
    labels: Annotated[
        str | None, typer.Option("--labels", help="What to find, separated by commas.", metavar="A,B")
    ] = None,
    model: ModelFlag = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Least score, between 0 and 1.", show_default="0.5")
    ] = None,
    nested: Annotated[bool, typer.Option("--nested", help="Entities may lie inside others.")] = False,
    server: ServerFlag = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Find them; see HELP."""
    text = read_text(file)
    wanted = None if labels is None else [label.strip() for label in labels.split(",")]
    with task_model(settings, model, TAGGER, server=server) as one:
        found = one.ask(
            lambda llm: llm.entities(text, wanted, threshold=threshold, flat_ner=not nested, stride=STRIDE)[
                0
            ],
            "/v1/entities",
            {
                "input": text,
                "labels": wanted,
                "threshold": threshold,
                "flat_ner": not nested,
                "stride": STRIDE,
            },
            _entities,
        )
    if json:
        print_json(to_builtins(found))
    elif not found:
        aside("nothing was found: try other labels, or a lower --threshold")
    elif is_styled(sys.stdout) and not nested:
        print(marked(text, found))
    else:
        for one in found:
            words = " ".join(one.text.split())
            print(f"{one.start}\t{one.end}\t{one.score:.3f}\t{one.label}\t{words}")


def _entities(reply: Any) -> list[Entity]:
    return convert(reply["data"][0]["entities"], list[Entity])


def marked(text: str, found: Sequence[Entity]) -> str:
    """The text with each entity, none of which overlap, on a color of its label and followed by that."""
    labels = list(dict.fromkeys(one.label for one in found))
    pieces: list[str] = []
    end = 0
    for one in found:
        color = COLORS[labels.index(one.label) % len(COLORS)]
        pieces += [text[end : one.start], f"\x1b[30;{color}m{one.text}{PLAIN}{DIM}[{one.label}]{PLAIN}"]
        end = one.end
    return "".join([*pieces, text[end:].rstrip("\n")])
