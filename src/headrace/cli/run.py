"""`headrace run`: stream an answer to a prompt, or chat."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from msgspec import Struct, to_builtins

from headrace.chat.messages import Message
from headrace.chat.templates.chat_template import missing_template
from headrace.cli.answer_printer import events, statistics
from headrace.cli.chat import chat
from headrace.cli.flags import takes_sampling, takes_settings
from headrace.cli.load_progress import loaded, names_a_model
from headrace.cli.terminal import JsonFlag, note, print_json
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.engine.client import LoadedModel
from headrace.engine.request import ChoiceFinished, Delta, EngineRequest, RequestFinished
from headrace.errors import UsageError
from headrace.sampling.params import with_defaults

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
    with loaded(model, settings) as running:
        if prompt is None:
            chat(running, sampling, system=system, show_statistics=stats, threads=settings.threads)
            return
        ids = _prompt_ids(running, prompt, raw=raw, system=system)
        params = with_defaults(running.defaults, sampling)
        request = EngineRequest(prompt=tuple(ids), params=params, is_continuation=raw and prompt != "")
        answer = _stream(running, request, echo=not json)
        if json:
            print_json(_report(running, answer, settings.threads))
        elif stats:
            note(statistics(running, answer.done, settings.threads).line())


def _prompt_ids(model: LoadedModel, prompt: str, *, raw: bool, system: str | None) -> list[int]:
    if raw:
        return model.tokenizer.encode_prompt(prompt)
    if model.template is None:
        raise missing_template(model.name)
    messages = [Message(role="system", content=system)] if system is not None else []
    messages.append(Message(role="user", content=prompt))
    return model.tokenizer.encode(model.template.render(messages), add_special=False)


class _AnswerPrinter(Struct, frozen=True):
    text: str
    ended: ChoiceFinished
    done: RequestFinished


def _stream(model: LoadedModel, request: EngineRequest, *, echo: bool) -> _AnswerPrinter:
    """The answer; with `echo` its text goes to stdout as it comes, and nothing else does in a pipe."""
    text: list[str] = []
    ended: ChoiceFinished | None = None
    done: RequestFinished | None = None
    for event in events(model, request):
        if isinstance(event, Delta):
            text.append(event.text)
            if echo:
                sys.stdout.write(event.text)
                sys.stdout.flush()
        elif isinstance(event, ChoiceFinished):
            ended = event
        elif isinstance(event, RequestFinished):
            done = event
    assert done is not None and ended is not None
    if echo and sys.stdout.isatty():
        print()
    return _AnswerPrinter("".join(text), ended, done)


def _report(model: LoadedModel, answer: _AnswerPrinter, threads: int | None) -> dict[str, object]:
    return {
        "model": model.name,
        "text": answer.text,
        "finish_reason": answer.ended.reason,
        "stop": answer.ended.stop,
        "seed": answer.done.seed,
        "usage": to_builtins(answer.done.usage),
        "timing": to_builtins(answer.done.timing),
        "statistics": to_builtins(statistics(model, answer.done, threads)),
    }
