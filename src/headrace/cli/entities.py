"""`headrace entities`: entities in a file or in piped text, marked in the text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.cli.flags import takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.prompt_input import MAX_CHARACTERS, whole_prompt
from headrace.cli.terminal import DIM, PLAIN, JsonFlag, is_styled, print_json
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError
from headrace.tasks.entities import Entity
from headrace.tasks.entity_windows import STRIDE

HELP = """Find entities in a text, by labels of your own.

The text is a FILE, or what is piped in (-). On a terminal it is printed with the entities in colors; in a
pipe one line an entity: start, end, score, label, text. Texts longer than the model's context are read in
windows.

\b
Examples:
  headrace entities letter.txt --labels person,city
  echo "I am Ann from Rome" | headrace entities --labels person,city --json
"""
TAGGER = "tagger"
COLORS = (42, 43, 46, 45, 44, 41)  # of the background


@takes_settings(*MODEL_SETTINGS)
def command(
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="The text; - is stdin.")] = "-",
    labels: Annotated[
        str | None, typer.Option("--labels", help="What to find, separated by commas.", metavar="A,B")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="The model that finds them.")] = TAGGER,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Least score, between 0 and 1.", show_default="0.5")
    ] = None,
    nested: Annotated[bool, typer.Option("--nested", help="Entities may lie inside others.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Find them; see HELP."""
    text = read_text(file)
    wanted = None if labels is None else [label.strip() for label in labels.split(",")]
    with loaded(model, settings) as llm:
        [found] = llm.entities(text, wanted, threshold=threshold, flat_ner=not nested, stride=STRIDE)
    if json:
        print_json(to_builtins(found))
    elif is_styled(sys.stdout) and not nested:
        print(marked(text, found))
    else:
        for one in found:
            words = " ".join(one.text.split())
            print(f"{one.start}\t{one.end}\t{one.score:.3f}\t{one.label}\t{words}")


def read_text(file: str) -> str:
    """The text of a file, or what is piped in; UsageError where it cannot be read."""
    if file == "-":
        text = whole_prompt("-")
        assert text is not None
        return text
    try:
        with Path(file).expanduser().open(encoding="utf-8", newline="") as opened:
            text = opened.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start:,})") from None
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{file} has more than {MAX_CHARACTERS:,} characters: split it")
    return text


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
