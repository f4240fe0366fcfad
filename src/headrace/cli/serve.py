"""`headrace serve`: models over HTTP."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.cli.flags import takes_settings_again
from headrace.config.garbage_collection import keep_present_objects
from headrace.config.providers import key_variables
from headrace.config.settings import SETTINGS, Settings
from headrace.workers.spawn import Spawner, hide, turns_file

HELP = """Serve models over HTTP by the APIs of OpenAI, Anthropic, Google and Ollama; /docs lists endpoints.

Without MODELS, and without [models] in headrace.toml, the bundled models are served. The first one is loaded
at startup; meanwhile requests get 503 with Retry-After. The others load on first use, within --memory. Each
model runs in its own process and is restarted if it crashes.

Stops on Ctrl-C or SIGTERM: in-flight requests get --shutdown-timeout seconds to finish; a second signal exits
immediately. SIGHUP reloads settings without interrupting requests.

\b
Examples:
  headrace serve
  headrace serve ./my-model --port 9000 --quantization int8
  headrace serve ./my-model ./my-other-model --memory 8GiB --keep-alive 600
  HEADRACE_API_KEY=secret headrace serve Qwen/Qwen3-0.6B --host 0.0.0.0
"""


@takes_settings_again(*SETTINGS)
def command(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODELS", help="Folders, OWNER/NAME or bundled models.")
    ] = None,
    *,
    read_settings: Callable[[], Settings],
) -> None:
    """Serve; see HELP."""
    start_server(models or [], read_settings)


def start_server(models: list[str], read_settings: Callable[[], Settings]) -> None:
    """Serve until a signal."""
    settings = read_settings()
    hide(key_variables(settings.providers))
    turns = turns_file() if settings.cluster is None else None  # replicas share the cores instead
    first = Spawner(turns).spawn()  # it starts while this process imports the server
    gc.disable()  # imported objects stay: collecting them repeatedly takes a fifth of the startup time
    serving = importlib.import_module("headrace.cli.serve_settings")
    keep_present_objects()
    gc.enable()
    serving.run(models, settings, read_settings, first)
