"""Download a hub model before loading it, with progress on a terminal."""

from __future__ import annotations

from headrace.cli.model_argument import HUB_NAME
from headrace.cli.terminal import note, progress_bar
from headrace.config.settings import Settings
from headrace.errors import ModelNotFound
from headrace.weights.hub.resolver import FILE_SUFFIX, pull, resolve


def fetch(name: str, settings: Settings) -> None:
    """Download a hub model that is not on this machine yet, with a progress bar."""
    if settings.offline or HUB_NAME.fullmatch(name) is None or name.endswith(FILE_SUFFIX):
        return
    try:
        resolve(name, offline=True)
    except ModelNotFound:
        note(f"fetching {name} from the hub")
        with progress_bar(name) as progress:
            pull(name, progress)
