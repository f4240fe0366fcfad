"""The argument MODEL: what is one, and the names that shells complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from headrace.config.names import suggestion
from headrace.errors import UsageError
from headrace.weights.hub.bundled import BUNDLED_DEFAULT, list_bundled
from headrace.weights.hub.resolver import FILE_SUFFIX, list_local

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# A lone word such as llama3.2 or qwen3:0.6b is meant as a model, and would be a poor prompt.
_FAMILY = re.compile(r"[A-Za-z][A-Za-z_-]*\d[\w.:-]*|[A-Za-z][\w.-]*:[\w.-]+")


def complete_model(incomplete: str) -> list[str]:
    """The models on this machine whose names begin so."""
    return [model.name for model in list_local() if model.name.startswith(incomplete)]


ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"Folder, x.gguf, OWNER/NAME or bundled model. [default: {BUNDLED_DEFAULT}]",
        autocompletion=complete_model,
        show_default=False,
    ),
]


def names_a_model(word: str) -> bool:
    """True if a lone argument is MODEL: a local folder, x.gguf, OWNER/NAME, a bundled name, ./x, /x.

    Raises UsageError for a word that looks like the name of a model which is not here.
    """
    if not word or any(space in word for space in " \n\t"):
        return False
    if word in list_bundled() or HUB_NAME.fullmatch(word) or word.startswith(("./", "../", "/", "~/")):
        return True
    if word.endswith(FILE_SUFFIX) or Path(word).is_dir():
        return True
    close = suggestion(word, [model.name for model in list_local()], cutoff=0.8)
    if close or _FAMILY.fullmatch(word):
        remedy = close or ": models of the hub are OWNER/NAME, such as Qwen/Qwen3-0.6B"
        raise UsageError(
            f"no model {word!r} is on this machine{remedy} (to ask {BUNDLED_DEFAULT} with this word: "
            f"headrace run {BUNDLED_DEFAULT} {word!r})",
            param="model",
        )
    return False
