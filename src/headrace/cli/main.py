"""The `headrace` command: finds the command's file, maps errors to stderr lines and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, NoReturn

import typer

from headrace import __version__
from headrace.errors import HeadraceError

COMMANDS = {
    "run": "Stream an answer to a prompt, or chat in the terminal.",
    "serve": "Serve a model over HTTP, as OpenAI's API does.",
    "keys": "Make, list and revoke the API keys of the server.",
    "list": "List the models on this machine.",
    "show": "Show what a model is, the memory it takes and how fast it can be.",
    "quantize": "Write a model in another type of weights, as GGUF or safetensors.",
    "rm": "Delete a model of the hub from this machine.",
    "pull": "Fetch a model from the hub.",
    "bench": "Measure this machine, and how near a model comes to what it can do.",
    "doctor": "Check this machine: kernels, memory, speed limits, caches.",
}
HELP = """Run language models fast on this machine.

Try:  headrace run "It was a dark and stormy night" --raw

Every setting is a flag, a variable (HEADRACE_PORT=9000) or a line in headrace.toml; flags win.
Exit codes: 0 done, 1 failed, 2 wrong usage.
"""


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the one command that `arguments` name; the others are only listed.

    Commands import what they need at the top of their files, so `--help` and `--version` stay fast.
    """
    app = typer.Typer(help=HELP, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_root)
    _add(app, "headrace.cli", COMMANDS, [word for word in arguments if not word.startswith("-")])
    return app


def _add(app: typer.Typer, package: str, commands: Mapping[str, str], words: Sequence[str]) -> None:
    for name, summary in commands.items():
        if [name] != list(words[:1]):
            app.command(name, help=summary)(_unloaded)
            continue
        module = importlib.import_module(f"{package}.{name}")
        if hasattr(module, "COMMANDS"):  # a folder of commands
            group = typer.Typer(help=module.HELP, rich_markup_mode=None, no_args_is_help=True)
            _add(group, module.__name__, module.COMMANDS, words[1:])
            app.add_typer(group, name=name, short_help=summary)
        else:
            app.command(name, help=module.HELP, short_help=summary)(module.command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def _unloaded() -> None:
    raise AssertionError("only the command that is named is ever called")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build(words)(words, prog_name="headrace")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.__context__, BrokenPipeError):
            _discard_output()
            code = 0  # whoever read our output has left (`| head`): not a failure, which typer makes of it
    except HeadraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        # Such as a full disk under stdout.
        print(f"error: {error}", file=sys.stderr)
        _discard_output()
        code = 1
    sys.exit(code)


def _discard_output() -> None:
    """Nothing more can be written to stdout, and Python would try again on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
