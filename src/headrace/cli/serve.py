"""`headrace serve`: a model over HTTP."""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from headrace.api.app import create_app
from headrace.api.guard import exposed
from headrace.api.server import bind, serve
from headrace.cli.flags import MODEL_SETTINGS, SERVER_SETTINGS, takes_settings
from headrace.cli.loading import loaded
from headrace.cli.terminal import note
from headrace.config import Settings
from headrace.engine.load import LoadedModel

HELP = """Serve a model over HTTP, as OpenAI's API does: chat completions, completions, models, health, ready,
metrics, and their description at /docs. While the model loads, requests get 503 with Retry-After.

Stops on Ctrl-C or SIGTERM: what is under way gets --drain-s seconds to finish, a second signal ends it.

\b
Examples:
  headrace serve
  headrace serve ./my-model --port 9000 --weights int8
  HEADRACE_API_KEY=secret headrace serve Qwen/Qwen3-0.6B --host 0.0.0.0
"""


@takes_settings(*SERVER_SETTINGS, *MODEL_SETTINGS)
def command(
    model: Annotated[str | None, typer.Argument(help="Folder, OWNER/NAME or shipped model.")] = None,
    *,
    settings: Settings,
) -> None:
    """Serve it; see HELP."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    with bind(settings) as listener, ExitStack() as held:
        for warning in exposed(settings):
            note(f"warning: {warning}")
        host, port = listener.getsockname()[:2]
        app = create_app(None, settings)
        stopped_by = serve(
            app,
            settings,
            listener,
            on_started=lambda: _greet(app.state.service.model, settings, host, port),
            load=lambda: held.enter_context(loaded(model, settings)),
        )
    if stopped_by == signal.SIGINT:
        sys.exit(130)


def _greet(model: LoadedModel, settings: Settings, host: str, port: int) -> None:
    address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{address}:{port}"
    key = " -H 'authorization: Bearer KEY'" if settings.api_key else ""
    if model.template is not None:
        path, body = "chat/completions", '{"messages": [{"role": "user", "content": "Hello"}]}'
    else:
        path, body = "completions", '{"prompt": "It was a dark and stormy night", "max_tokens": 60}'
    print(f"serving {model.name} ({model.context_length:,} tokens of context) on {url}")
    print(f"try: curl {url}/v1/{path}{key} -H 'content-type: application/json' -d '{body}'", flush=True)
