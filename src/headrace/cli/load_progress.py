"""Load the model named on the command line, with progress on a terminal."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict

from headrace.cli.fetching import fetch
from headrace.cli.terminal import progress_bar
from headrace.config.settings import Settings
from headrace.llm import LLM
from headrace.loading.options import engine_options


@contextmanager
def loaded(
    name: str | None, settings: Settings, adapters: Mapping[str, Path] | None = None
) -> Generator[LLM]:
    """A model that is loaded until the block ends, with its adapters by name."""
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)  # of tasks, for example
    if name is not None:
        fetch(name, settings)
    with progress_bar("packing weights") as progress:
        llm = LLM(name, progress=progress, adapters=adapters, **asdict(engine_options(settings)))
    with llm:
        yield llm
