"""The chat in the terminal: history, several lines, and Ctrl-C that stops the answer, not the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.chat.templates.chat_template import missing_template
from headrace.cli.answer_printer import AnswerPrinter, fills_context
from headrace.cli.statistics import StatisticsReader
from headrace.cli.terminal import aside, note, warn
from headrace.config.names import nearest, suggestion
from headrace.errors import ContextLengthExceeded, HeadraceError
from headrace.inference.completion import Completion, CompletionChunk
from headrace.inference.loop_thread import BlockingStream
from headrace.llm import LLM
from headrace.sampling.params import with_defaults

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyPressEvent

HELP = """Enter sends. For several lines: end a line with \\, press Alt-Enter, or open and
close with \"\"\". Ctrl-C stops the answer, Ctrl-D leaves.
  /help            this text
  /reset           forget the conversation (or /clear)
  /system TEXT     set the system message and forget the conversation; without
                   TEXT there is none
  /set NAME VALUE  set a sampling parameter: /set temperature 0.2; without NAME
                   show them
  /quit            leave (or /bye, /exit)"""
COMMANDS = ("/help", "/?", "/reset", "/clear", "/system", "/set", "/quit", "/exit", "/bye")
_LEAVE = ("/quit", "/exit", "/bye")
SETTABLE: Mapping[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
}


class ChatHistory:
    """The messages so far and the parameters of the next answer."""

    def __init__(self, llm: LLM, sampling: Mapping[str, Any], system: str | None) -> None:
        self.llm = llm
        self.sampling = dict(sampling)
        self.system = system
        self.messages: list[dict[str, object]] = []
        self.warned: set[str] = set()

    def stream(self) -> Iterator[CompletionChunk]:
        """The answer to the conversation so far."""
        first: list[dict[str, object]] = [{"role": "system", "content": self.system}] if self.system else []
        return self.llm.stream_chat([*first, *self.messages], **self.sampling)

    def command(self, line: str) -> str:
        """Carry out a line that begins with /; returns what to tell the person."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/reset", "/clear"):
            self.messages.clear()
            return "the conversation is forgotten"
        if name == "/system":
            self.system = rest or None
            self.messages.clear()
            return "the system message is set" if rest else "there is no system message"
        if name == "/set":
            return self._set(rest)
        if name in ("/help", "/?"):
            return HELP
        return f"unknown command {name}{suggestion(name, COMMANDS) or ': /help lists them'}"

    def _set(self, rest: str) -> str:
        name, _, value = rest.replace("=", " ").partition(" ")
        if not name:
            params = with_defaults(self.llm.model.defaults, self.sampling)
            return "\n".join(f"{known} = {getattr(params, known)}" for known in SETTABLE)
        if name not in SETTABLE:
            return f"unknown parameter {name}{nearest(name, list(SETTABLE))}"
        try:
            parsed: Any = SETTABLE[name](value.strip())
            with_defaults(self.llm.model.defaults, {**self.sampling, name: parsed})
            self.sampling[name] = parsed
        except ValueError:
            kind = "whole number" if SETTABLE[name] is int else "number"
            return f"{value.strip()!r} is not a {kind}"
        except HeadraceError as error:
            return error.message
        return f"{name} = {parsed}"


def chat(llm: LLM, sampling: Mapping[str, Any], *, system: str | None, statistics: StatisticsReader) -> None:
    """Talk until Ctrl-D or /quit. Raises TemplateMissing for a model that cannot chat."""
    model = llm.model
    if model.template is None:
        raise missing_template(model.name)
    with_defaults(model.defaults, sampling)  # refuses what is out of range before the first question
    history = ChatHistory(llm, sampling, system)
    session = _session()
    aside(f"{model.name}, {model.context_length:,} tokens of context. /help for help, Ctrl-D to leave.")
    while True:
        try:
            line = _joined(session.prompt(">>> ").strip())
        except KeyboardInterrupt:
            aside("Ctrl-D or /quit leaves")
            continue
        except EOFError:
            return
        if line in _LEAVE:
            return
        if line.startswith("/"):
            note(history.command(line))
        elif line:
            _take_turn(history, line, statistics)


def _take_turn(history: ChatHistory, line: str, statistics: StatisticsReader) -> None:
    context = history.llm.model.context_length
    try:
        completion = _answer(history, line)
    except ContextLengthExceeded as error:
        note(f"error: the conversation does not fit the context ({error.message}); /reset forgets it")
    except HeadraceError as error:
        note(f"error: {error.message}")
    except KeyboardInterrupt:
        print()
    else:
        if completion is None:
            return
        warn(completion.warnings, history.warned)
        statistics.show(completion)
        if fills_context(completion, history.llm):
            note(f"the context of {context:,} tokens is full, which ended the answer: /reset forgets it")


def _answer(history: ChatHistory, line: str) -> Completion | None:
    """Stream one answer; None when Ctrl-C cut it short. Its text stays in the history, its reasoning does
    not: chat templates leave earlier reasoning out."""
    history.messages.append({"role": "user", "content": line})
    printer, completion = AnswerPrinter(), None
    try:
        with closing(cast("BlockingStream[CompletionChunk]", history.stream())) as stream:
            for chunk in stream:
                printer.print(chunk)
                completion = chunk.completion
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except HeadraceError:
        history.messages.pop()
        raise
    printer.end()
    history.messages.append({"role": "assistant", "content": printer.text})
    return completion


def open_ended(text: str) -> bool:
    """Whether Enter continues the text: after a backslash, or inside an open block of triple quotes."""
    return text.endswith("\\") or text.count('"""') % 2 == 1


def _joined(text: str) -> str:
    """What was meant: without the marks that only kept the text open."""
    return text.replace("\\\n", "\n").replace('"""', "").strip()


def _session() -> PromptSession[str]:
    # Here, because it takes longer to import than the rest of `headrace run`, which seldom needs it.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        buffer = event.current_buffer
        if open_ended(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _newline(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.insert_text("\n")

    path = _history_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        history: History = FileHistory(path)
    except OSError as error:
        aside(f"what you type is not kept for the next time: {error}")
        history = InMemoryHistory()
    return PromptSession(history=history, key_bindings=keys, multiline=True, prompt_continuation="... ")


def _history_path() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace" / "history"
