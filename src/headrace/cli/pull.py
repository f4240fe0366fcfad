"""`headrace pull`: download a hub model."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, progress_bar
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.weights.hub.resolver import pull

HELP = """Download a model from the hub, or the files that have changed.

Only config, tokenizer and safetensors files are downloaded; no executable code.

\b
Example:
  headrace pull Qwen/Qwen3-0.6B
"""


@takes_settings("offline")
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="OWNER/NAME on the hub.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.", metavar="NAME")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Download it."""
    if settings.offline:
        raise UsageError("offline is set, and pulling needs the network: drop --offline or HEADRACE_OFFLINE")
    with progress_bar(model) as progress:
        folder = pull(model, progress, revision=revision)
    if json:
        print_json({"name": model, "folder": str(folder)})
    else:
        print(f"{model} is in {folder}")
