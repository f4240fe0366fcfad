"""Load the model named on the command line, with progress on a terminal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict

from headrace.cli.fetching import HUB_NAME, fetch
from headrace.cli.terminal import progress_bar
from headrace.config.settings import Settings
from headrace.llm import LLM
from headrace.loading.options import engine_options
from headrace.weights.hub.bundled import list_bundled
from headrace.weights.hub.resolver import FILE_SUFFIX


def names_a_model(word: str) -> bool:
    """True if a lone argument is MODEL: a local folder, x.gguf, OWNER/NAME, a bundled name, ./x, /x."""
    if not word or any(space in word for space in " \n\t"):
        return False
    if word in list_bundled() or HUB_NAME.fullmatch(word) or word.startswith(("./", "../", "/", "~/")):
        return True
    return word.endswith(FILE_SUFFIX) or Path(word).is_dir()


@contextmanager
def loaded(name: str | None, settings: Settings) -> Generator[LLM]:
    """A model that is loaded until the block ends."""
    if name is not None:
        fetch(name, settings)
    with progress_bar("packing weights") as progress:
        llm = LLM(name, progress=progress, **asdict(engine_options(settings)))
    with llm:
        yield llm
