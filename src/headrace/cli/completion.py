"""`headrace completion`: the script by which a shell completes commands, flags and models."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

HELP = """Print a script that completes commands, flags and the names of models in your shell.

\b
Examples:
  headrace completion bash >> ~/.bashrc
  headrace completion zsh >> ~/.zshrc
  headrace completion fish > ~/.config/fish/completions/headrace.fish
"""


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print it."""
    scripts: Any = importlib.import_module("typer.completion")
    print(
        scripts.get_completion_script(
            prog_name="headrace", complete_var="_HEADRACE_COMPLETE", shell=shell.value
        )
    )


def prepare() -> None:
    """Make typer answer the requests of its scripts."""
    scripts: Any = importlib.import_module("typer.completion")
    scripts.completion_init()


def words_so_far(environ: Mapping[str, str]) -> list[str]:
    """The words after `headrace` on the shell's line."""
    line = environ.get("_TYPER_COMPLETE_ARGS") or environ.get("COMP_WORDS", "")
    try:
        return shlex.split(line)[1:]
    except ValueError:  # an open quote
        return line.split()[1:]
