"""`headrace serve`: models over HTTP."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.cli.flags import MODEL_SETTINGS, SERVER_SETTINGS, takes_settings_again
from headrace.config.settings import Settings
from headrace.workers.spawn import spawn

HELP = """Serve models over HTTP, as OpenAI's API does: chat completions, completions, models, health, ready,
metrics, and their description at /docs. While the first model loads, requests get 503 with Retry-After; the
others, and those of [models] in headrace.toml, load when they are first used, within --memory. Each runs in a
process of its own, and where that dies another one takes its place.

Stops on Ctrl-C or SIGTERM: what is under way gets --drain-s seconds to finish, a second signal ends it.
SIGHUP reads the settings again, without an end to any reply.

\b
Examples:
  headrace serve
  headrace serve ./my-model --port 9000 --weights int8
  headrace serve ./my-model ./my-other-model --memory 8GiB --keep-alive 600
  HEADRACE_API_KEY=secret headrace serve Qwen/Qwen3-0.6B --host 0.0.0.0
"""


@takes_settings_again(*SERVER_SETTINGS, *MODEL_SETTINGS)
def command(
    models: Annotated[list[str] | None, typer.Argument(help="Folders, OWNER/NAME or shipped models.")] = None,
    *,
    read_settings: Callable[[], Settings],
) -> None:
    """Serve them; see HELP."""
    settings = read_settings()
    first = spawn()  # it starts while this process imports what a server needs
    gc.disable()  # what is imported stays: to look through it again and again is a fifth of the start
    serving = importlib.import_module("headrace.cli.serve_settings")
    gc.freeze()
    gc.enable()
    serving.run(models or [], settings, read_settings, first)
