"""From a model's name on the command line to a loaded model, with progress on a terminal."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.cli.terminal import note, progress_bar
from headrace.config import Settings
from headrace.engine.load import LoadedModel, load_model
from headrace.engine.options import EngineOptions
from headrace.errors import ModelNotFound
from headrace.weights.hub import FILES, pull, resolve
from headrace.weights.shipped import list_shipped

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def engine_options(settings: Settings) -> EngineOptions:
    """The engine's part of the settings."""
    return EngineOptions(
        weights=settings.weights,  # type: ignore[arg-type]
        kv_dtype=settings.kv_dtype,  # type: ignore[arg-type]
        context=settings.context,
        threads=settings.threads,
        max_sequences=settings.max_sequences,
        token_budget=settings.token_budget,
        kv_memory_bytes=settings.kv_memory,
        executor=settings.executor,  # type: ignore[arg-type]
        cache_dir=settings.cache_folder,
        offline=settings.offline,
    )


def names_a_model(word: str) -> bool:
    """Whether a lone argument is MODEL: a folder here, x.gguf, x.bin, OWNER/NAME, a shipped name, ./x, /x."""
    if not word or any(space in word for space in " \n\t"):
        return False
    if word in list_shipped() or _HUB_NAME.fullmatch(word) or word.startswith(("./", "../", "/", "~/")):
        return True
    return word.endswith(FILES) or Path(word).is_dir()


def fetch(name: str, settings: Settings) -> None:
    """Fetch a hub model that is not here yet, with a progress bar."""
    if settings.offline or _HUB_NAME.fullmatch(name) is None or name.endswith(FILES):
        return
    try:
        resolve(name, offline=True)
    except ModelNotFound:
        note(f"fetching {name} from the hub")
        with progress_bar(name) as progress:
            pull(name, progress)


@contextmanager
def loaded(name: str | None, settings: Settings) -> Generator[LoadedModel]:
    """A model that runs until the block ends."""
    if name is not None:
        fetch(name, settings)
    with progress_bar("packing weights") as progress:
        model = load_model(name, engine_options(settings), progress=progress)
    try:
        yield model
    finally:
        model.close()
