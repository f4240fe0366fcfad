"""`headrace redact`: a file or piped text without personal data."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from msgspec import convert, to_builtins

from headrace.cli.flags import takes_settings
from headrace.cli.task_model import TAGGER, TASK_SETTINGS, ModelFlag, ServerFlag, task_model
from headrace.cli.terminal import JsonFlag, print_json
from headrace.cli.text_input import read_text
from headrace.config.settings import Settings
from headrace.tasks.pii.analyzer import THRESHOLD
from headrace.tasks.pii.redaction import Redacted, redact

HELP = """Replace personal data in a text, by patterns with checksums.

The text is a FILE, or what is piped in (-). Equal data become equal placeholders such as <EMAIL_ADDRESS_1>.
--json prints the text, the entities and the vault, which has what placeholders stand for.

Names of persons, places and organizations are found with --model only, by a model that finds entities.

\b
Examples:
  headrace redact letter.txt
  headrace redact letter.txt --entities EMAIL_ADDRESS,PHONE_NUMBER --operator mask
  headrace redact letter.txt --model tagger
"""


@takes_settings(*TASK_SETTINGS)
def command(
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="The text; - is stdin.")] = "-",
    entities: Annotated[
        str | None, typer.Option("--entities", help="What to look for, separated by commas.", metavar="A,B")
    ] = None,
    operator: Annotated[
        str, typer.Option("--operator", help="replace, redact, mask, hash or keep.")
    ] = "replace",
    threshold: Annotated[float, typer.Option("--threshold", help="Least score, 0 to 1.")] = THRESHOLD,
    model: ModelFlag = None,
    server: ServerFlag = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Replace it; see HELP."""
    text, operators = read_text(file), {"DEFAULT": operator}
    wanted = None if entities is None else [one.strip() for one in entities.split(",")]
    if model is None and not server:
        done = redact(text, entities=wanted, operators=operators, threshold=threshold)
    else:
        body = {"input": text, "entities": wanted, "operators": operators, "threshold": threshold}
        with task_model(settings, model, TAGGER, server=server) as one:
            done = one.ask(
                lambda llm: llm.redact(text, entities=wanted, operators=operators, threshold=threshold)[0],
                "/v1/redact",
                body | {"return_vault": True},
                _redacted,
            )
    if json:
        print_json(to_builtins(done))
    else:
        sys.stdout.write(done.text)


def _redacted(reply: Any) -> Redacted:
    return convert(reply["data"][0] | {"vault": reply["vault"]}, Redacted)
