"""`headrace run`: stream an answer to a prompt, or chat."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from headrace.cli.answer_printer import AnswerPrinter, statistics
from headrace.cli.chat import chat
from headrace.cli.flags import takes_sampling, takes_settings
from headrace.cli.load_progress import loaded, names_a_model
from headrace.cli.terminal import JsonFlag, note, print_json
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError
from headrace.inference.completion import Completion, CompletionChunk
from headrace.llm import LLM

HELP = """Stream an answer to a prompt, or chat in the terminal.

With a prompt, the answer goes to stdout and one line of statistics to stderr. PROMPT "-" is read from stdin,
as it is when there is no prompt and stdin is not a terminal. Without a prompt, on a terminal, it is a chat.

MODEL is a folder, OWNER/NAME of the hub, or a shipped model; without one it is the default that ships with
headrace. A single argument is MODEL when it is an existing folder, OWNER/NAME, a shipped name or starts with
./ ../ / or ~/ ; anything else is PROMPT.

\b
Examples:
  headrace run "It was a dark and stormy night" --raw --max-tokens 80
  headrace run ./my-model "What is a headrace?" --quantization int4
  cat letter.txt | headrace run ./my-model - --system "Summarize in one sentence."
  headrace run ./my-model
"""


@takes_settings(*MODEL_SETTINGS)
@takes_sampling
def command(
    model: Annotated[str | None, typer.Argument(help="Folder, OWNER/NAME or shipped model.")] = None,
    prompt: Annotated[str | None, typer.Argument(help="Text to answer; - reads stdin.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message.", metavar="TEXT")] = None,
    json: JsonFlag = False,
    stats: Annotated[bool, typer.Option(help="The line of statistics on stderr.")] = True,
    *,
    sampling: dict[str, Any],
    settings: Settings,
) -> None:
    """Run it; see HELP."""
    if prompt is None and model is not None and not names_a_model(model):
        model, prompt = None, model
    if raw and system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out: drop one of them")
    interactive = prompt is None and sys.stdin.isatty()
    if interactive and (raw or json):
        raise UsageError("a chat in the terminal takes no --raw or --json: give a PROMPT")
    if not interactive and prompt in (None, "-"):
        prompt = sys.stdin.read()
        if not prompt:
            raise UsageError('there is no prompt and stdin is empty: give a PROMPT, or "" for none')
    with loaded(model, settings) as llm:
        if prompt is None:
            chat(llm, sampling, system=system, show_statistics=stats, threads=settings.threads)
            return
        printer = AnswerPrinter(echo=not json)
        completion: Completion | None = None
        for chunk in _stream(llm, prompt, sampling, raw=raw, system=system):
            printer.print(chunk)
            completion = chunk.completion
        printer.end()
        assert completion is not None
        if json:
            print_json(_report(llm, completion, settings.threads))
        elif stats:
            note(statistics(llm, completion, settings.threads).line())


def _stream(
    llm: LLM, prompt: str, sampling: dict[str, Any], *, raw: bool, system: str | None
) -> Iterator[CompletionChunk]:
    if raw:
        return llm.stream(prompt, **sampling)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.stream_chat([*messages, {"role": "user", "content": prompt}], **sampling)


def _report(llm: LLM, completion: Completion, threads: int | None) -> dict[str, object]:
    return {
        "model": llm.model.name,
        "text": completion.text,
        "reasoning": completion.reasoning,
        "finish_reason": completion.finish_reason,
        "stop": completion.choices[0].stop,
        "seed": completion.seed,
        "usage": to_builtins(completion.usage),
        "timing": to_builtins(completion.timing),
        "statistics": to_builtins(statistics(llm, completion, threads)),
    }
