"""Classifiers that were fitted on the vectors of an encoder: which encoder, which labels."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, ValidationError, convert

from headrace.errors import CorruptFile, HeadraceError
from headrace.weights import strict_json
from headrace.weights.confined import confined
from headrace.weights.hub.resolver import resolve

SETTINGS_FILE, WEIGHTS_FILE = "text_classifier.json", "text_classifier.safetensors"
MAX_BYTES = 1 << 20


class FittedSettings(Struct, frozen=True):
    """What the settings file has. `encoder` is a model's name, or the path of its folder."""

    encoder: str
    labels: tuple[str, ...]


def read_fitted(folder: Path) -> FittedSettings | None:
    """The settings in a folder that `TextClassifier.save` wrote; None in any other. CorruptFile."""
    if not (folder / SETTINGS_FILE).is_file():
        return None
    found = strict_json.read_object(confined(folder, SETTINGS_FILE), MAX_BYTES)
    try:
        settings = convert(found, FittedSettings)
    except ValidationError as error:
        raise CorruptFile(f"{SETTINGS_FILE} cannot be read: {error}") from None
    if len(settings.labels) < 2 or len(set(settings.labels)) < len(settings.labels):
        raise CorruptFile(f"{SETTINGS_FILE} has {len(settings.labels)} labels: it must have two or more")
    return settings


def encoder_folder(folder: Path, *, offline: bool | None = None) -> Path:
    """The folder of the encoder of a fitted classifier; of any other model its own. Errors as `resolve`."""
    settings = read_fitted(folder) if folder.is_dir() else None
    return folder if settings is None else resolve(settings.encoder, offline=offline)


def encoder_name(name: str, folder: Path) -> str:
    """What finds a model again: its name where that does, else the path of its folder."""
    try:
        if resolve(name, offline=True).resolve() == folder.resolve():
            return name
    except HeadraceError:
        pass
    return str(folder.resolve())
