"""`headrace explain`: what a request did, or what one would do."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from headrace.cli.explain_text import explain_text
from headrace.cli.flags import takes_sampling, takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.executors.machine_limits import machine_limits
from headrace.loading.loader import usable_cores
from headrace.telemetry.explain_node import ExplainNode

HELP = """Show where the time of a request went, or would go.

ID is that of a request to the server at --host and --port (`x-request-id` of its reply, or one of `headrace
requests`). Any other text is a prompt: the model is loaded, and nothing is computed. An id that you have
made yourself needs --id.

\b
Examples:
  headrace explain req_5f0c8c6f7a3b4b9f8f3f0d1c2b3a4958
  headrace explain "Summarize the attached letter." --model Qwen/Qwen3-0.6B --max-tokens 200
"""
_ID = re.compile(r"req_\w+")  # also a part of one: no prompt looks so


@takes_settings("host", "port", "api_key", "admin_api_key", *MODEL_SETTINGS)
@takes_sampling
def command(
    what: Annotated[str, typer.Argument(metavar="ID|PROMPT", help="A request's id, or a prompt.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model that the prompt is for.")] = None,
    is_id: Annotated[
        bool, typer.Option("--id", help="The argument is an id, whatever it looks like.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without template.")] = False,
    json: JsonFlag = False,
    *,
    sampling: dict[str, Any],
    settings: Settings,
) -> None:
    """Run it; see HELP."""
    if is_id or _ID.fullmatch(what):
        path = f"/v1/requests/{quote(what, safe='')}/explain"
        tree = msgspec.convert(call_server(settings, "GET", path), ExplainNode)
    else:
        machine_limits(settings.threads or usable_cores(), settings.cache_folder)  # nothing else says times
        with loaded(model, settings) as llm:
            prompt = what if raw else [{"role": "user", "content": what}]
            tree = llm.explain(prompt, **sampling)
    if json:
        print_json(msgspec.to_builtins(tree))
    else:
        print(explain_text(tree))
