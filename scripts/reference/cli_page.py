"""The page of the command line: every command as typer knows it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main
from page_text import cell, code, generated, sentence, table

from headrace.cli import adapt, bench, cluster
from headrace.cli import eval as eval_commands
from headrace.cli.main import COMMANDS, build

GROUPS = {
    "adapt": adapt.COMMANDS,
    "bench": bench.COMMANDS,
    "cluster": cluster.COMMANDS,
    "eval": eval_commands.COMMANDS,
}
INTRODUCTION = """Commands that report take `--json`. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
interrupted by Ctrl-C. Flags of settings are described on the page [Settings](settings.md), where each has
its environment variable."""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for words in _commands():
        parts += _section(words)
    return generated("Command line", "src/headrace/cli/", *parts)


def _commands() -> Iterator[tuple[str, ...]]:
    for name in COMMANDS:
        yield (name,)
        yield from ((name, inner) for inner in GROUPS.get(name, ()))


def _section(words: tuple[str, ...]) -> list[str]:
    command: Any = typer.main.get_command(build(words))
    for word in words:
        command = command.commands[word]
    name = " ".join(["headrace", *words])
    context = command.context_class(command, info_name=name)
    parts = [f"{'#' * (len(words) + 1)} `{name}`", *_help(command.help)]
    if hasattr(command, "commands"):
        return parts
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts.append(f'```text title="usage"\n{usage}\n```')
    for kind, head in (("argument", "argument"), ("option", "option")):
        rows = [_row(each, context) for each in command.params if each.param_type_name == kind]
        if rows:
            parts.append(table([head, "meaning"], rows))
    return parts


def _row(parameter: Any, context: Any) -> tuple[str, str]:
    declaration, help = parameter.get_help_record(context)
    return code(cell(declaration)), sentence(help).replace("<", "&lt;").replace("*", "\\*")


def _help(text: str) -> Iterator[str]:
    """A help text: paragraphs as they are, those behind a form feed (`\\b`) as code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            title, *lines = paragraph.removeprefix("\b").strip().splitlines()
            yield title
            yield "```console\n" + inspect.cleandoc("\n" + "\n".join(lines)) + "\n```"
        else:
            yield paragraph.replace("<", "&lt;")
