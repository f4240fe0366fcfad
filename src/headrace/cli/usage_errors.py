"""Wrong usage that typer finds, in the words and the form of all other errors."""

from __future__ import annotations

import re
from typing import Any

import typer

from headrace.config.names import nearest, suggestion

# Typer has its own copy of click in newer versions: the base class of its errors is found by one of them.
WRONG_USAGE: type[Exception] = typer.BadParameter.__mro__[1]
_NO_COMMAND = re.compile(r"No such command '(.+?)'")
# What the library that reads values writes, in plain words.
_WORDS = {"Value error, ": "", "Input should be ": "it must be "}
_DETAIL = re.compile(r", unable to parse.*")


def usage_text(error: Any) -> str:
    """One line with cause and remedy; the whole help where a command with subcommands got none."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    context: Any = getattr(error, "ctx", None)
    command = "headrace" if context is None else context.command_path
    return f"error: {_message(error, context)} (see {command} --help)"


def _message(error: Any, context: Any) -> str:
    found = str(error.format_message()).strip().rstrip(".").replace("\n\t", " ")
    if type(error).__name__ == "NoSuchOption":
        return f"unknown option {error.option_name}{suggestion(error.option_name, _options(context))}"
    no_command = _NO_COMMAND.match(found)
    if no_command is not None:
        return f"unknown command {no_command[1]!r}{nearest(no_command[1], list(context.command.commands))}"
    parameter: Any = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and parameter.param_type_name == "argument":
        return f"{parameter.metavar or parameter.name.upper()} is missing"
    for noise, words in _WORDS.items():
        found = _DETAIL.sub("", found.replace(noise, words))
    return found[:1].lower() + found[1:]


def _options(context: Any) -> list[str]:
    """All flags of the command that was called."""
    found: list[str] = []
    if context is not None:
        for parameter in context.command.get_params(context):
            found += [*parameter.opts, *parameter.secondary_opts]
    return [name for name in found if name.startswith("--")]
